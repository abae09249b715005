"""The service as people run it: ``xlt serve`` in processes of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import ROOT
from xlt_serve.bench.server_process import ServerProcess, free_port, started


@dataclass(frozen=True)
class Running(ServerProcess):
    def workers(self) -> list[int]:
        """Process ids of the workers, as the service itself reports them."""
        import psutil

        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # ended, or about to
                if any("_bentoml_impl.worker.service" in part for part in child.cmdline()):
                    found.append(child.pid)
        return found


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[Running]:
    """A service on a free port, ready; it is told to end when the block does."""
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLT_STATE": str(folder / "state")}
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)  # that of the tests
    environment["BENTOML_HOME"] = str(folder / "bentoml")
    command = [sys.executable, "-m", "xlt_serve.cli", "serve", "--port", str(port), *arguments]
    with started(
        "xlt serve",
        command,
        port,
        folder / "service.log",
        environment=environment | variables,
        folder=folder,
    ) as made:
        yield Running(made.url, made.process, made.log, made.seconds)
