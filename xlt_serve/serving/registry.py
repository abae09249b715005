"""The bundles of a worker, by name: what requests find, and a thread that keeps them as was agreed.

The thread looks every moment whether there is a proposal to get ready for or something new was agreed,
whether the files that are served are still those that were verified, and whether a bundle that could
not be loaded can be by now. What goes wrong is a notice, in ``/models``, the metrics and the log; the
worker goes on with what it has.
"""

from __future__ import annotations

import datetime
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeVar

from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.errors import BundleAltered, XltError
from xlt_serve.serving import sealed
from xlt_serve.serving.compact_json import as_json
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.loading import Loader, give_back
from xlt_serve.serving.log import Log
from xlt_serve.serving.rehearsal import Stopped
from xlt_serve.serving.worker_state import Notice, Report, Shared, Wanted, recovered

T = TypeVar("T")

POLL = 0.2
"""Seconds between two looks at what the workers are to have."""

SELDOM = 2.0
"""Seconds between two looks at the origins of the copies and at the other workers."""

NOT_SEALED = "is served where it is, without a copy: who cuts its weights ends the workers"

AGAIN = 10.0
"""Seconds until a bundle that could not be loaded is tried again; longer where that takes long."""

OTHERWISE = 10_000
"""Bytes of a description beside the manifests, more or less."""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def least_sizes(labels: Sequence[str]) -> tuple[int, ...]:
    """Bytes that no, one, two, … of these labels take at least in the answer to an item: of each two
    quotes, a colon, a digit and a comma beside its name."""
    sizes = sorted(len(label.encode("utf-8", "replace")) + 5 for label in labels)
    return tuple(accumulate(sizes, initial=0))


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Loaded:
    """Requests hold it until they are answered: what was swapped out lives as long as they do.

    The registry holds the classifier for longer than that: to destroy its sessions takes a while, which
    is for the registry's thread and not for the event loop, where the last request ends."""

    name: str
    place: str
    classifier: Classifier
    changed: int = 0
    at: str = field(default_factory=_now)
    manifest: bytes = field(default=b"{}", repr=False, compare=False)
    """As JSON: it may be large, and anybody may ask for it at any time."""
    label_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """``least_sizes`` of its labels, of which there may be a hundred thousand."""

    def __post_init__(self) -> None:
        labels = self.classifier.bundle.manifest.labels
        object.__setattr__(self, "label_sizes", least_sizes(labels))
        self.classifier.name = self.name  # answers and errors have the name that clients know

    @property
    def bundle(self) -> Bundle:
        return self.classifier.bundle


@dataclass(frozen=True, slots=True)
class Missing:
    """A bundle that should be there and can't be loaded, or must not answer any more."""

    why: Notice


@dataclass(frozen=True, slots=True)
class Ready:
    """What was loaded for a proposal, or why it could not be."""

    wanted: Wanted
    loaded: dict[str, Loaded]
    error: str = ""


class Registry:
    def __init__(
        self,
        shared: Shared,
        loader: Loader,
        log: Log,
        on_notices: Callable[[tuple[Notice, ...]], None] = lambda notices: None,
    ) -> None:
        self.shared, self.loader, self.log, self._on_notices = shared, loader, log, on_notices
        self.state = Wanted(-1, {})
        self.stopping = threading.Event()
        self.reached = -1  # the generation that no answer is older than
        self._slots: dict[str, Loaded | Missing] = {}  # replaced, never changed
        self._writing = threading.Lock()
        self._ready: Ready | None = None
        self._reported: Report | None = None
        self._seldom_at, self._again_at = 0.0, dict[str, float]()
        self._trouble: dict[str, tuple[str, str]] = {}  # what failed → code, what it said
        self._outdated: frozenset[str] = frozenset()
        self._apart: frozenset[str] = frozenset()
        self._late = 0
        self._notices: tuple[Notice, ...] = ()
        self._opened: list[tuple[weakref.ref[Loaded], Classifier]] = []  # for its thread alone
        self._freed, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)

    # What requests ask.

    def all(self) -> list[Loaded]:
        return [slot for slot in self._slots.values() if isinstance(slot, Loaded)]

    def bundles(self) -> dict[str, Bundle]:
        return {loaded.name: loaded.classifier.bundle for loaded in self.all()}

    def get(self, name: str | None) -> Loaded:
        slots = self._slots
        if name is None:
            return _there(next(iter(slots.values()), None))
        if name not in slots:
            raise unknown(name, slots)
        return _there(slots[name])

    def chosen(self, name: str | None, suits: Callable[[Bundle], bool]) -> Loaded:
        """The bundle of this name; where a request names none, the first that suits, else the first.
        A missing one before it may be the one that is meant: another must not answer in its place."""
        before: list[Loaded | Missing] = []
        for slot in self._slots.values() if name is None else ():
            before.append(slot)
            if isinstance(slot, Loaded) and suits(slot.bundle):
                return [_there(one) for one in before][-1]
        return self.get(name)

    def refuse_altered(self, loaded: Loaded) -> None:
        """To be asked after a run: what ran on files that had changed is no answer."""
        if not sealed.intact(loaded.bundle):
            self._put(Missing(_altered(loaded.name)), loaded)
            self.wake()
            raise _unavailable(_altered(loaded.name))

    def edition(self) -> object:
        """While it is the same, ``described`` says the same of this worker."""
        slots = self._slots
        models = [(one.name, one.at, one.manifest) for one in self.all()]
        return self.state.generation, self._notices, list(slots), models

    def described(self, largest: int) -> bytes:
        """As JSON; without manifests where it would be larger. Reads files: not for the event loop."""
        slots = self._slots
        first = next(iter(slots), None)
        try:
            workers = {p: r for p, r in self.shared.workers().items() if p != self.shared.process}
        except OSError:
            workers = {}
        said = dict.fromkeys(self._notices)
        for report in workers.values():
            said |= dict.fromkeys(report.notices)
        models = [slot for slot in slots.values() if isinstance(slot, Loaded)]
        whole = sum(len(loaded.manifest) for loaded in models) <= largest - OTHERWISE
        if not whole:
            said[_left_out(largest)] = None
        parts = []
        for loaded in models:
            head = {"name": loaded.name, "default": loaded.name == first, "loaded_at": loaded.at}
            manifest = loaded.manifest if whole else b"{}"
            parts.append(as_json(head)[:-1] + b',"manifest":' + manifest + b"}")
        rest = {
            "generation": self.state.generation,
            "workers": 1 + len(workers),
            "warnings": [
                {name: text for name, text in asdict(notice).items() if text} for notice in said
            ],
        }
        return b'{"models":[' + b",".join(parts) + b"]," + as_json(rest)[1:]

    # The thread.

    def start(self) -> None:
        self.load()
        self._thread.start()

    def load(self) -> None:
        """What was agreed, or what the other workers have."""
        self._report()  # from now on a swap waits for us
        agreed = self._read("committed", self.shared.committed, self.shared.first)
        peers = self._peers()
        known = recovered(agreed, peers)
        if not any(peer.state for peer in peers):  # a service that starts takes what is there
            known = replace(known, digests={})
        self.state = known
        self._fill()
        self._tell()

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        self.stopping.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join(5)  # it may be loading
        try:
            self.shared.leave()
        except OSError as error:
            self.log.write("state_unwritable", level="warning", message=str(error))

    def _follow(self) -> None:
        while not self.stopping.is_set():
            self._wake.wait(POLL)
            self._wake.clear()
            try:
                self.look()
            except Exception as error:  # the thread must not end: nobody would follow any more
                self.log.failure("follow_failed", error)
                self.stopping.wait(1)

    def look(self) -> None:
        """One round."""
        proposed, agreed = self._asked_for()
        if agreed.generation > self.state.generation:
            self._adopt(agreed)
        if proposed is not None and self._written("lock", self.shared.drop_abandoned, False):
            proposed = None
        if proposed is None or proposed.generation <= self.state.generation:
            self._ready = None
        elif self._ready is None or self._ready.wanted.attempt != proposed.attempt:
            self._ready = None  # what an earlier one had takes memory
            self._let_go()
            self._ready = self._prepared(proposed)
        self._withdraw_altered()
        self._tell()  # also what comes next mends
        self._let_go()
        self._fill()
        self._let_go()
        if time.monotonic() >= self._seldom_at:
            self._look_around()
        self._tell()

    def _withdraw_altered(self) -> None:
        for loaded in self.all():
            if not sealed.intact(loaded.bundle):
                self._put(Missing(_altered(loaded.name)), loaded)

    def _let_go(self) -> None:
        """Of the bundles that nothing serves and the last request of which was answered."""
        self._opened = [(held, opened) for held, opened in self._opened if held() is not None]
        sealed.remove_dropped()
        if self._freed.is_set():
            self._freed.clear()
            give_back()

    def _asked_for(self) -> tuple[Wanted | None, Wanted]:
        """What is proposed, and what is agreed. In this order: a proposal that is gone was dropped, or is
        what was agreed."""
        ready = None if self._ready is None else self._ready.wanted
        proposed = self._read("proposed", self.shared.proposed, ready)
        return proposed, self._read("committed", self.shared.committed, self.state)

    def _has_to_look(self) -> bool:
        """Whether something came that must not wait until a bundle is tried that few may ever ask for."""
        proposed, agreed = self._asked_for()
        if self.stopping.is_set() or agreed.generation > self.state.generation:
            return True
        if proposed is None or proposed.generation <= self.state.generation:
            return False
        return self._ready is None or self._ready.wanted.attempt != proposed.attempt

    def _prepared(self, wanted: Wanted) -> Ready:
        loaded: dict[str, Loaded] = {}
        try:
            for name in wanted.bundles:
                if wanted.changed.get(name, 0) != self.state.changed.get(name, 0):
                    loaded[name] = self._loaded(wanted, name, self.stopping.is_set, tried=True)
        except Exception as error:  # whatever it is, whoever waits must hear of it
            said = str(error) if isinstance(error, XltError) else type(error).__name__
            self.log.write("not_ready_to_swap", level="error", message=said)
            return Ready(wanted, {}, said or "failed")
        return Ready(wanted, loaded)

    def _adopt(self, agreed: Wanted) -> None:
        """From here on requests see it, all of it at once."""
        ready, before = self._ready, self._slots
        at_hand = {} if ready is None or ready.wanted.attempt != agreed.attempt else ready.loaded
        self._ready = None
        with self._writing:
            found = self._slots | at_hand
            waits = {name: Missing(_starting(name)) for name in agreed.bundles}
            self._slots = {name: found.get(name, waits[name]) for name in agreed.bundles}
        self.state = agreed
        self._again_at.clear()
        for loaded in at_hand.values():
            self._say_swapped(loaded)
        for name in before.keys() - agreed.bundles.keys():
            self.log.write("unloaded", bundle=name, generation=agreed.generation)

    def _fill(self) -> None:
        """Load what should be there and is not."""
        for name in self.state.bundles:
            begun = time.monotonic()
            if self._has(name) or self._again_at.get(name, 0.0) > begun:
                continue
            before = self._slots.get(name)
            try:
                loaded = self._loaded(self.state, name, self._has_to_look)
            except Stopped:
                for late in self.state.bundles:
                    self._put(Missing(_starting(late)), None)
                return
            except Exception as error:
                took = time.monotonic() - begun
                self._again_at[name] = begun + max(AGAIN, took)
                said = str(error) if isinstance(error, XltError) else type(error).__name__
                self.log.write("load_failed", level="error", bundle=name, message=said)
                if not isinstance(before, Loaded):
                    code = error.code if isinstance(error, XltError) else "failed"
                    self._put(Missing(_unloadable(name, code)), before)
                continue
            self._put(loaded, before)
            digest = getattr(loaded.bundle, "digest", "")
            self.state = replace(self.state, digests=self.state.digests | {name: digest})
            if before is not None:
                self._say_swapped(loaded)
            before = None  # its memory may be needed for the next
            self._let_go()

    def _has(self, name: str) -> bool:
        slot = self._slots.get(name)
        return isinstance(slot, Loaded) and slot.changed == self.state.changed.get(name, 0)

    def _loaded(
        self, wanted: Wanted, name: str, stopped: Callable[[], bool], tried: bool = False
    ) -> Loaded:
        """The very bundle that was agreed on, from the copy that others hold if need be. ``tried``: by who
        proposed it; of a copy there is a mark that says so, of a bundle without one there is none."""
        place, digest = wanted.bundles[name], wanted.digests.get(name, "")
        bundle = self.loader.seal(place, digest)
        if digest and bundle.digest != digest:
            raise BundleAltered(place, "is another version by now", "swap it in to have it served")
        if bundle.copied or not tried:
            self.loader.rehearse(bundle, stopped)
        classifier = self.loader.open(bundle)
        weakref.finalize(classifier, self._freed.set).atexit = False
        manifest = as_json(asdict(bundle.manifest))
        changed = wanted.changed.get(name, 0)
        loaded = Loaded(name, place, classifier, changed, manifest=manifest)
        self._opened.append((weakref.ref(loaded), classifier))
        return loaded

    def _put(self, slot: Loaded | Missing, instead_of: Loaded | Missing | None) -> None:
        """Unless another was first."""
        name = slot.name if isinstance(slot, Loaded) else slot.why.bundle
        with self._writing:
            if self._slots.get(name) is instead_of:
                self._slots = self._slots | {name: slot}

    def _say_swapped(self, loaded: Loaded) -> None:
        version = loaded.bundle.manifest.version
        generation = self.state.generation
        self.log.write("swapped", bundle=loaded.name, version=version, generation=generation)

    # What is said.

    def _look_around(self) -> None:
        self._seldom_at = time.monotonic() + SELDOM
        loaded = self.all()
        self._outdated = frozenset(one.name for one in loaded if sealed.outdated(one.bundle))
        mine = self.state
        peers = [one for one in self._peers() if one.state]  # also notices who was killed
        states = [one.state for one in peers if one.state]
        theirs = [one.digests for one in states if one.generation == mine.generation]
        self._apart = frozenset(
            name
            for name, own in mine.digests.items()
            for one in theirs
            if one.get(name, own) != own
        )
        self._late = sum(one.reached < mine.generation for one in peers)
        if not self._written("touch", self.shared.still_reported, False):
            self._reported = None

    def _tell(self) -> None:
        """The report, the metrics and the log, where there is something new."""
        self._report()
        now = tuple(self._found())
        details = dict(self._trouble.values())
        for notice in now:
            if notice not in self._notices:
                self.log.write(
                    notice.code,
                    level="warning",
                    bundle=notice.bundle or None,
                    message=notice.message,
                    detail=details.get(notice.code),
                )
        for notice in self._notices:
            if notice not in now:
                self.log.write("over", code=notice.code, bundle=notice.bundle or None)
        if now != self._notices:
            self._notices = now
            self._on_notices(now)
            self._report()

    def _found(self) -> list[Notice]:
        out = [_in_trouble(code) for code in sorted({code for code, _ in self._trouble.values()})]
        if self._late:
            out.append(Notice("workers_behind", f"{self._late} workers have yet to follow"))
        for name, slot in self._slots.items():
            if isinstance(slot, Missing):
                out.append(slot.why)
                continue
            if not self._has(name):
                out.append(Notice("behind", "this worker could not load the newest version", name))
            if not getattr(slot.bundle, "copied", True):
                out.append(Notice("not_sealed", NOT_SEALED, name))
            if name in self._outdated:
                text = "was altered where it came from; a copy of what was loaded is served"
                out.append(Notice("origin_altered", text, name))
            if name in self._apart:
                out.append(Notice("workers_differ", "workers have several versions", name))
        return out

    def _report(self) -> None:
        ready = self._ready
        slots = self._slots
        if not any(isinstance(slots[name], Loaded) and not self._has(name) for name in slots):
            self.reached = self.state.generation
        report = Report(
            state=None if self.state.generation < 0 else self.state,
            ready="" if ready is None else ready.wanted.attempt,
            error="" if ready is None else ready.error,
            notices=self._notices,
            reached=self.reached,
        )
        if report == self._reported:
            return
        self._reported = None

        def write() -> None:
            self.shared.report(report)
            self._reported = report

        self._written("report", write, None)

    def _peers(self) -> list[Report]:
        none: dict[int, Report] = {}
        workers = self._read("workers", self.shared.workers, none)
        return [report for process, report in workers.items() if process != self.shared.process]

    def _read(self, what: str, ask: Callable[[], T], otherwise: T) -> T:
        return self._asked("state_unreadable", what, ask, otherwise)

    def _written(self, what: str, do: Callable[[], T], otherwise: T) -> T:
        return self._asked("state_unwritable", what, do, otherwise)

    def _asked(self, code: str, what: str, ask: Callable[[], T], otherwise: T) -> T:
        try:
            answer = ask()
        except OSError as error:
            self._trouble[what] = (code, str(error))
            return otherwise
        self._trouble.pop(what, None)
        return answer


def unknown(name: str, known: dict[str, Any]) -> Refusal:
    rule, remedy = "is not loaded", f"use one of {', '.join(known)}"
    return Refusal(404, "unknown_bundle", f"bundle={name[:100]!r}", rule, remedy)


def _there(slot: Loaded | Missing | None) -> Loaded:
    if isinstance(slot, Loaded):
        return slot
    raise _unavailable(slot.why if slot is not None else Notice("starting", "nothing is loaded"))


def _unavailable(why: Notice) -> Refusal:
    return Refusal(
        503,
        "bundle_unavailable",
        f"bundle={why.bundle[:100]!r}",
        why.message,
        "name another bundle, or try again later",
        {"Retry-After": "2"},
    )


def _left_out(largest: int) -> Notice:
    text = f"with the manifests this would have more than {largest} bytes (XLT_MAX_ANSWER)"
    return Notice("manifests_left_out", text)


def _altered(name: str) -> Notice:
    return Notice("bundle_altered", "its files were altered while it was served", name)


def _starting(name: str) -> Notice:
    return Notice("bundle_loading", "is being loaded", name)


def _unloadable(name: str, code: str) -> Notice:
    return Notice("bundle_missing", f"can't be loaded ({code}); the log says why", name)


def _in_trouble(code: str) -> Notice:
    what = "read" if code == "state_unreadable" else "written"
    text = f"the folder of the workers' state can't be {what}: this one goes on with what it has"
    return Notice(code, text)
