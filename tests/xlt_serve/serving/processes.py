"""The service as people run it: ``xlt serve`` in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests import ROOT


@dataclass
class Running:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def workers(self) -> list[int]:
        """Process ids of the workers, as the service itself reports them."""
        import psutil

        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # ended, or about to
                if any("_bentoml_impl.worker.service" in part for part in child.cmdline()):
                    found.append(child.pid)
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[Running]:
    """A service on a free port, ready; it is told to end when the block does."""
    port, log = free_port(), folder / "service.log"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XLT_STATE": str(folder / "state")}
    environment.pop("PROMETHEUS_MULTIPROC_DIR", None)  # that of the tests
    environment["BENTOML_HOME"] = str(folder / "bentoml")
    command = [sys.executable, "-m", "xlt_serve.cli", "serve", "--port", str(port), *arguments]
    with log.open("wb") as handle:
        process = subprocess.Popen(
            command, env=environment | variables, stdout=handle, stderr=handle, cwd=folder
        )
    running = Running(f"http://127.0.0.1:{port}", process, log)
    try:
        until_ready(running)
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_ready(running: Running, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if running.process.poll() is not None:
            break
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{running.url}/readyz").status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError(f"not ready:\n{running.log.read_text()[-3000:]}")
