"""A bundle is loaded and run in a process of its own before any worker loads it.

A graph may loop for ever, a tokenizer may take years, a file may crash its reader. In a worker each of
them would take the service along. In a child with a time limit it is an error that says what happened.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.errors import BundleError, XltError, with_name
from xlt_serve.runtime.session import Options
from xlt_serve.serving import sealed
from xlt_serve.serving.warm_up import refuse_wrong, run_examples, warm_up
from xlt_serve.text.tokens import LARGEST

LIMIT_SETTING = "XLT_LOAD_TIMEOUT"

MEMORY = 2_000_000_000
"""Bytes that it may take beside eight times the bundle's own size."""

CHILD = ["-m", "xlt_serve.serving.rehearsal"]
POLL = 0.02
LONGEST = 1e9
"""Seconds that an alarm can be set to."""

ANSWER = 100_000


class Stopped(Exception):
    """A rehearsal was ended: the service ends, or has something to do that can't wait."""


def rehearse(
    bundle: Bundle, provider: str, limit: float, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Raise a BundleError if the bundle can't be loaded and run within so many seconds.

    Not with TensorRT, which builds engines for minutes, nor for bundles that ship.
    """
    mark = sealed.passed(bundle, provider)
    if provider == "tensorrt" or (mark is not None and mark.exists()) or _ships(bundle):
        return
    if mark is None:
        return _watch(bundle, provider, limit, stopped)
    end = time.monotonic() + limit
    with _alone(bundle, end, stopped):
        if not mark.exists():
            _watch(bundle, provider, end - time.monotonic(), stopped)
        with contextlib.suppress(OSError):
            mark.touch()


@contextlib.contextmanager
def _alone(bundle: Bundle, end: float, stopped: Callable[[], bool]) -> Iterator[None]:
    """One rehearsal of a copy at a time: of the workers that load the same bytes the first one does it."""
    with bundle.file(bundles.MANIFEST).open("rb") as handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                _go_on(bundle, end, stopped)
        yield


def _go_on(bundle: Bundle, end: float, stopped: Callable[[], bool]) -> None:
    """A moment's wait, unless it was the last."""
    if stopped():
        raise Stopped
    if time.monotonic() > end:
        raise _failed(bundle, "its load and first run took too long")
    time.sleep(POLL)


def _ships(bundle: Bundle) -> bool:
    """By all of the hash: a version is twelve digits of one, which others can be made to have."""
    given = bundles.digest(bundle.file(bundles.MANIFEST))
    known = (bundles.MODELS / name / bundles.MANIFEST for name in bundles.shipped())
    return any(bundles.digest(file) == given for file in known)


def _watch(bundle: Bundle, provider: str, limit: float, stopped: Callable[[], bool]) -> None:
    """Run the child until it ends, or takes too long or too much."""
    most = MEMORY + 8 * sum(bundle.file(name).stat().st_size for name in bundle.manifest.files)
    call = [
        sys.executable,
        *CHILD,
        str(bundle.path),
        provider,
        str(math.ceil(min(limit, LONGEST)) + 5),
    ]
    with tempfile.TemporaryFile() as answer:
        child = subprocess.Popen(
            call,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + limit
            while child.poll() is None:
                if stopped():
                    raise Stopped
                if time.monotonic() > end:
                    raise _failed(bundle, f"its load and first run took over {limit:.3g} s")
                if _memory(child.pid) > most:
                    raise _failed(bundle, f"its load and first run took over {most} bytes")
                time.sleep(POLL)
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        _refuse(bundle, child.returncode, answer)


def _refuse(bundle: Bundle, code: int, answer: IO[bytes]) -> None:
    if code < 0:
        raise _failed(bundle, f"its load or first run died of {signal.Signals(-code).name}")
    answer.seek(0)
    try:
        said: Any = json.loads(answer.read(ANSWER))
        if code == 0 and said["passed"] is True:
            return
        value, rule, remedy = (str(said[key]) for key in ("value", "rule", "remedy"))
    except (ValueError, KeyError, TypeError):
        raise _failed(bundle, f"its load ended with {code} and without an answer") from None
    raise BundleError(value, rule, remedy)


def _failed(bundle: Bundle, rule: str) -> BundleError:
    place = getattr(bundle, "origin", bundle.path)
    return BundleError(place, rule, f"export the bundle again, or raise {LIMIT_SETTING}")


def _memory(process: int) -> int:
    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0


def awkward() -> list[str]:
    """Texts that tokenizers are slow at: as large as a client may send, and hard to split."""
    runs = [word * (LARGEST // len(word)) for word in ("a", "a ", "aA1!\n", "'")]
    return [*runs, " " * (LARGEST - 1) + "a", "a" * (LARGEST - 1) + "!", "a" * 40 + "!"]


def run(place: Path, provider: str) -> None:
    """Load, open and run every graph, and predict; whatever is wrong is raised."""
    bundle = bundles.load(place)
    classifier = Classifier(bundle, Options(threads=1, provider=provider))
    warm_up(classifier, classifier.runners.of("plain"))
    run_examples(classifier)
    texts = ["The team won the final.", "Die Mannschaft gewann.", *awkward()]
    items = [(text, "a") if bundle.manifest.pair else text for text in texts]
    found = classifier.predict(items, long="truncate")
    if (error := found[0].error) is not None:
        raise BundleError(place, f"can't classify a short text ({error})", "export it again")
    refuse_wrong(classifier, found)


def main(place: str, provider: str, seconds: str) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(int(seconds))  # ends us, should the worker be killed that watches
    os.nice(5)  # the workers answer meanwhile
    try:
        run(Path(place), provider)
    except XltError as error:
        answer = {"value": error.value, "rule": error.rule, "remedy": error.remedy}
    except Exception as error:
        answer = {"value": place, "rule": f"can't be run ({with_name(error)})", "remedy": ""}
    else:
        print(json.dumps({"passed": True}))
        return 0
    print(json.dumps(answer))
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
