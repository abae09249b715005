"""The bundles of a worker, by name, and swapping one for another while requests go on."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.errors import BundleError, BundleNotFound, XltError
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.log import Log
from xlt_serve.serving.worker_state import Shared, Wanted

POLL = 0.2
"""Seconds between two looks at what the workers are to have."""

TOGETHER = 120.0
"""Seconds that a swap waits for the other workers."""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Requests hold it until they are answered: what was swapped out lives as long as they do."""

    name: str
    place: str
    classifier: Classifier
    at: str = field(default_factory=_now)


class Registry:
    """``open_bundle`` loads a bundle and runs it once; a bundle that can't is never swapped in."""

    def __init__(self, shared: Shared, open_bundle: Callable[[str], Classifier], log: Log) -> None:
        self.shared, self._open, self.log = shared, open_bundle, log
        self._loaded: dict[str, Loaded] = {}
        self._has: dict[str, int] = {}
        self.generation = 0

    def load_all(self) -> None:
        wanted = self.shared.wanted()
        for name, place in wanted.bundles.items():
            self._loaded[name] = Loaded(name, place, self._open(place))
        self._has, self.generation = dict(wanted.changed), wanted.generation
        self.shared.report(self.generation)

    def all(self) -> list[Loaded]:
        return list(self._loaded.values())

    def get(self, name: str | None) -> Loaded:
        if name is None:
            return next(iter(self._loaded.values()))
        if name not in self._loaded:
            raise Refusal(
                404,
                "unknown_bundle",
                f"bundle={name[:100]!r}",
                "is not loaded",
                f"use one of {', '.join(self._loaded)}",
            )
        return self._loaded[name]

    def bundles(self) -> dict[str, Bundle]:
        return {name: loaded.classifier.bundle for name, loaded in self._loaded.items()}

    def chosen(self, name: str | None, suits: Callable[[Bundle], bool]) -> Loaded:
        """The bundle of this name; where a request names none, the first that suits, else the first."""
        if name is None:
            for loaded in self._loaded.values():
                if suits(loaded.classifier.bundle):
                    return loaded
        return self.get(name)

    async def swap(self, name: str, place: str | None) -> None:
        """Load here first: what fails, fails before any worker has changed anything."""
        if place is None:
            place = self.get(name).place
        try:
            turn = self.shared.turn()
            turn.__enter__()
        except BlockingIOError:
            raise Refusal(
                409, "swapping", "", "another swap is under way", "try again when it is done"
            ) from None
        try:
            loaded = Loaded(name, place, await self._opened(place))
            generation = self.shared.want(name, place)
            self._put(loaded, generation)
            self.shared.report(generation)
            await self._together(generation)
        finally:
            turn.__exit__(None, None, None)

    async def _opened(self, place: str) -> Classifier:
        """A bundle that a client asked for; if there is none, that is the client's mistake."""
        try:
            return await asyncio.to_thread(self._open, place)
        except BundleError as error:
            status = 404 if isinstance(error, BundleNotFound) else 422
            raise Refusal(status, error.code, error.value, error.rule, error.remedy) from error

    async def follow(self) -> None:
        """Forever: load what another worker was asked to swap in."""
        told, rounds, said = self.generation, 0, ""
        while True:
            await asyncio.sleep(POLL)
            rounds += 1
            try:
                if rounds % 50 == 0:  # every ten seconds: notices who was killed
                    self.shared.workers()
                wanted = self.shared.wanted()
                if wanted.generation > told:
                    self.shared.report(wanted.generation, await self._catch_up(wanted))
                    told = wanted.generation  # not before: what could not be written is tried again
            except OSError as failed:  # no file handle left, say: the next round may have one
                if str(failed) != said:
                    said = str(failed)
                    self.log.write("state_unreadable", level="error", message=said)

    async def _catch_up(self, wanted: Wanted) -> str:
        """Load what was swapped in elsewhere; what went wrong."""
        error = ""
        for name, generation in wanted.changed.items():
            if generation <= self._has.get(name, 0):
                continue
            place = wanted.bundles[name]
            try:
                loaded = Loaded(name, place, await asyncio.to_thread(self._open, place))
            except Exception as failed:  # whatever it is, the next swap must find us here
                error = str(failed) if isinstance(failed, XltError) else type(failed).__name__
                self.log.write("swap_failed", level="error", bundle=name, message=error)
                continue
            self._put(loaded, generation)
        return error

    def described(self) -> dict[str, Any]:
        first = next(iter(self._loaded))
        return {
            "models": [
                {
                    "name": loaded.name,
                    "default": loaded.name == first,
                    "loaded_at": loaded.at,
                    "manifest": asdict(loaded.classifier.bundle.manifest),
                }
                for loaded in self._loaded.values()
            ],
            "generation": self.generation,
            "workers": len(self.shared.workers()),
        }

    def _put(self, loaded: Loaded, generation: int) -> None:
        self._loaded[loaded.name] = loaded
        self._has[loaded.name] = generation
        self.generation = max(self.generation, generation)
        version = loaded.classifier.bundle.manifest.version
        self.log.write("swapped", bundle=loaded.name, version=version, generation=generation)

    async def _together(self, generation: int) -> None:
        """Until every worker has it: then no answer comes from the old bundle any more."""
        end = asyncio.get_running_loop().time() + TOGETHER
        while late := self._behind(generation):
            if asyncio.get_running_loop().time() > end:
                raise Refusal(
                    500, "swap_failed", "", f"{late} workers have not loaded it in {TOGETHER:g} s"
                )
            await asyncio.sleep(POLL / 4)
        workers = self.shared.workers().values()
        failed = [w["error"] for w in workers if w["error"] and w["generation"] == generation]
        if failed:
            raise Refusal(
                500, "swap_failed", "", f"{len(failed)} workers could not load it: {failed[0]}"
            )

    def _behind(self, generation: int) -> int:
        workers = self.shared.workers().values()
        return sum(worker["generation"] < generation for worker in workers)
