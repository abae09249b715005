"""A swap over all workers, whole or not at all.

Whoever is asked takes the lock, tries the bundle in a process of its own, and writes a proposal. All
workers, this one too, get ready for it. When each has said so, one rename commits: from then on
everybody follows, also who is stopped just then, once it goes on. If anybody fails, or does not answer
in time, the proposal is taken back and nothing has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from xlt_serve.bundle import Bundle, Manifest
from xlt_serve.errors import BundleError, BundleNotFound
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.loading import Loader
from xlt_serve.serving.registry import Registry, unknown
from xlt_serve.serving.rehearsal import LIMIT_SETTING, Stopped
from xlt_serve.serving.sealed import SealedBundle
from xlt_serve.serving.worker_state import Shared, Wanted

POLL = 0.05
FOLLOWED = 5.0
"""Seconds that an answer waits, after the commit, for all workers to have taken the step."""


class Swaps:
    def __init__(self, shared: Shared, registry: Registry, loader: Loader, limit: float) -> None:
        self.shared, self.registry, self.loader, self.limit = shared, registry, loader, limit

    async def swap(self, name: str, place: str | None, force: bool = False) -> None:
        """``force``: also if the labels or the task are others than those that the name has now."""
        await in_thread(lambda: self._swap(name, place, force))

    async def unload(self, name: str) -> None:
        await in_thread(lambda: self._unload(name))

    def _swap(self, name: str, place: str | None, force: bool) -> None:
        end = time.monotonic() + self.limit
        with self._turn() as state:
            if place is None:
                if name not in state.bundles:
                    raise unknown(name, state.bundles)
                place = state.bundles[name]
            # Held until all have it: without it, nobody might hold the copy for a moment.
            before = None if force else self.registry.bundles().get(name)
            tried = self._tried(place, end)
            refuse_others(name, before, tried)
            self._agree(state.having(name, place, tried.digest), end)

    def _unload(self, name: str) -> None:
        end = time.monotonic() + self.limit
        with self._turn() as state:
            if name not in state.bundles:
                raise unknown(name, state.bundles)
            left = state.lacking(name)
            if not any(loaded.name in left.bundles for loaded in self.registry.all()):
                raise Refusal(
                    409,
                    "last_bundle",
                    f"bundle={name[:100]!r}",
                    "is the last one that answers",
                    "load another one first",
                )
            self._agree(left, end)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Wanted]:
        """The lock, and what holds now."""
        try:
            with contextlib.ExitStack() as stack:
                try:
                    stack.enter_context(self.shared.turn())
                except BlockingIOError:  # of the lock alone: a system without room says the same
                    raise Refusal(
                        409,
                        "swapping",
                        "",
                        "another swap is under way",
                        "try again when it is done",
                    ) from None
                try:
                    agreed = self.shared.committed()
                except OSError:
                    agreed = self.registry.state  # a corrupt file: this swap will replace it
                yield max(agreed, self.registry.state, key=lambda wanted: wanted.generation)
        except OSError as error:
            raise Refusal(
                500,
                "state",
                "",
                f"the folder of the workers' state can't be used ({error.strerror or error})",
                "mend it; nothing was changed",
            ) from error

    def _tried(self, place: str, end: float) -> SealedBundle:
        """A bundle that a client asked for; if there is none, that is the client's mistake."""
        try:
            bundle = self.loader.seal(place, end=end)
            left = end - time.monotonic()
            if left <= 0:
                rule = f"was not copied and verified within {self.limit:g} s"
                raise BundleError(place, rule, f"raise {LIMIT_SETTING}")
            self.loader.rehearse(bundle, self.registry.stopping.is_set, left)
        except BundleError as error:
            status = 404 if isinstance(error, BundleNotFound) else 422
            raise Refusal(status, error.code, error.value, error.rule, error.remedy) from error
        except Stopped:
            raise _closing() from None
        except OSError as error:
            rule = f"it could not be tried ({error.strerror or error})"
            raise Refusal(500, "swap_failed", "", rule, "nothing was changed") from error
        return bundle

    def _agree(self, wanted: Wanted, end: float) -> None:
        try:
            self.shared.propose(wanted)
            self.registry.wake()
            self._until_all_are_ready(wanted, end)
            self.shared.commit()
        except BaseException:
            with contextlib.suppress(OSError):
                self.shared.abort()
            self.registry.wake()
            raise
        self.registry.wake()
        self._until_all_follow(wanted)

    def _until_all_are_ready(self, wanted: Wanted, end: float) -> None:
        while True:
            workers = self.shared.workers()
            told = [one for one in workers.values() if one.ready == wanted.attempt]
            if failed := [one.error for one in told if one.error]:
                rule = f"{len(failed)} of {len(workers)} workers could not load it: {failed[0]}"
                raise Refusal(500, "swap_failed", "", rule, "nothing was changed")
            if len(told) == len(workers) and self.shared.process in workers:
                return
            if self.registry.stopping.is_set():
                raise _closing()
            if time.monotonic() > end:
                late = len({self.shared.process, *workers}) - len(told)
                raise Refusal(
                    500,
                    "swap_failed",
                    "",
                    f"{late} workers were not ready for it within {self.limit:g} s",
                    f"nothing was changed; restart them, or raise {LIMIT_SETTING}",
                )
            time.sleep(POLL)

    def _until_all_follow(self, wanted: Wanted) -> None:
        """Then no answer comes from the old bundle any more. It is agreed in any case: nothing that
        happens here may sound like a failure."""
        end = time.monotonic() + FOLLOWED
        while time.monotonic() < end and not self.registry.stopping.is_set():
            with contextlib.suppress(OSError):
                reached = [one.reached for one in self.shared.workers().values()]
                if min([self.registry.reached, *reached]) >= wanted.generation:
                    return
            time.sleep(POLL)


NAMED = 10
"""Labels that a refusal names, of those that go and of those that come."""


def refuse_others(name: str, before: Bundle | None, after: Bundle) -> None:
    """Whoever asks for a name goes by its labels: what gives others is no newer version of it. ``before``:
    what has the name, if anything."""
    if before is None or not (found := differences(before.manifest, after.manifest)):
        return
    raise Refusal(
        409,
        "needs_force",
        f"bundle={name[:100]!r}",
        f"the new one is for something else ({'; '.join(found)})",
        'send "force": true to swap it in all the same, or load it under another name',
    )


def differences(before: Manifest, after: Manifest) -> list[str]:
    """In what clients would notice: labels, task, one text or two."""
    found = []
    for what, one, other in (
        ("labels lost", before, after),
        ("labels gained", after, before),
    ):
        there = set(other.labels)
        if names := [label for label in one.labels if label not in there]:
            found.append(f"{what}: {_listed(names)}")
    if before.pair != after.pair:
        found.append("pairs of texts instead of texts" if after.pair else "texts instead of pairs")
    if before.task != after.task:
        found.append(f"task {_listed([after.task])} instead of {_listed([before.task])}")
    return found


def _listed(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > NAMED else ""
    return ", ".join(name[:100] for name in names[:NAMED]) + more


def _closing() -> Refusal:
    return Refusal(
        503, "closed", "", "the service ends; nothing was changed", "", {"Retry-After": "1"}
    )


async def in_thread(work: Callable[[], None]) -> None:
    """Wait for it in a thread that no exit waits for: the threads of asyncio's pool would be joined."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(None)

    def run() -> None:
        failed: BaseException | None = None
        try:
            work()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, failed)

    threading.Thread(target=run, name="swap", daemon=True).start()
    await done
