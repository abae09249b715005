"""From a place to a classifier that is ready: seal the bundle, try it elsewhere, open and warm it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.runtime.gpu.devices import worker_device
from xlt_serve.runtime.graph_io import GRAPHS
from xlt_serve.runtime.session import Options
from xlt_serve.serving import rehearsal, sealed
from xlt_serve.serving.log import Log
from xlt_serve.serving.scheduler import Scheduler
from xlt_serve.serving.sealed import SealedBundle
from xlt_serve.serving.settings import Environment
from xlt_serve.serving.warm_up import warm_up
from xlt_serve.translation import Translators


class Loader:
    def __init__(
        self,
        environment: Environment,
        threads: int,
        scheduler: Scheduler,
        translators: Translators | None,
        log: Log,
    ) -> None:
        self.environment, self.threads, self.log = environment, threads, log
        self.scheduler, self.translators = scheduler, translators

    def seal(self, place: str, digest: str = "", end: float = math.inf) -> SealedBundle:
        """``end``: of the monotonic clock, for swaps; at the start a large bundle takes what it takes."""
        state = self.environment.state
        folder = state / "sealed" if state else sealed.default_folder()
        return sealed.served(place, folder, self.log, digest, end)

    def rehearse(
        self, bundle: Bundle, stopped: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """It runs in a process of its own first; in so many seconds, by default those of a load."""
        if seconds is None:
            seconds = self.environment.load_timeout
        rehearsal.rehearse(bundle, self.environment.provider, seconds, stopped)

    def open(self, bundle: Bundle) -> Classifier:
        """Loaded and warm: a client's first request must not be the one that opens a graph."""
        classifier = Classifier(
            bundle,
            Options(
                threads=self.threads, provider=self.environment.provider, device=self._device()
            ),
            self.environment.budget or None,
            translators=self.translators,
            synonyms=self.environment.synonyms,
        )
        for graph in classifier.bundle.manifest.graphs:
            if graph in GRAPHS and graph in (self.environment.warm or GRAPHS):
                self.scheduler.open(classifier.runners, graph)
        warm_up(classifier, self.scheduler.open(classifier.runners, "plain")[1])
        return classifier

    def _device(self) -> int:
        """The GPU of this worker: BentoML counts its workers."""
        if len(self.environment.devices) < 2:
            return worker_device(self.environment.devices, None)
        from bentoml import server_context

        return worker_device(self.environment.devices, server_context.worker_index)


def give_back() -> None:
    """To the system: the C library keeps what a bundle took, about 100 MB of the shipped one, for later."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc alone has it
        trim(0)
