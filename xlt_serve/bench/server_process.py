"""A server in a process of its own: start it, wait until it is ready, end all that it started."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xlt_serve.errors import DataError, UsageError

PATIENCE = 120.0
"""Seconds that a server may take to start."""


@dataclass(frozen=True)
class ServerProcess:
    """``seconds``: from the start until it was ready."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    seconds: float = 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(
    name: str,
    command: Sequence[str],
    port: int,
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    ready: str = "/readyz",
    patience: float = PATIENCE,
) -> Iterator[ServerProcess]:
    """The server that ``command`` starts on ``port``, ready; it ends with the block.

    Its output goes to a file. A pipe that nobody reads is full after some hundred requests, and
    then the server waits for ever.
    """
    begun = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = ServerProcess(f"http://127.0.0.1:{port}", process, log)
    try:
        until_ready(server, name, ready, patience)
        yield replace(server, seconds=time.perf_counter() - begun)
    finally:
        end(process)


def until_ready(
    server: ServerProcess,
    name: str = "the service",
    ready: str = "/readyz",
    patience: float = PATIENCE,
) -> None:
    """Return when ``ready`` answers with 200; an error with the end of the log if it never does."""
    begun = time.monotonic()
    while not answers(f"{server.url}{ready}"):
        if server.process.poll() is not None:
            raise UsageError(name, f"could not be served: {_tail(server.log)}")
        if time.monotonic() - begun > patience:
            raise DataError(
                name, f"was not ready to serve after {patience:.0f} s: {_tail(server.log)}"
            )
        time.sleep(0.02)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):  # urllib's own errors are OSErrors
        return False


def end(process: subprocess.Popen[bytes], patience: float = 20.0) -> None:
    """End a server with all that it started."""
    # Workers lead sessions of their own, which no signal to the group reaches. They are looked up
    # while their parent still lives.
    children = _descendants(process.pid)
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    _signal(process.pid, signal.SIGKILL)
    for child in children:
        with contextlib.suppress(Exception):  # psutil's: it ended itself, as it should
            child.kill()
    process.wait()


def _tail(log: Path, most: int = 300) -> str:
    """The last of what a server said."""
    with log.open("rb") as output:
        output.seek(max(0, log.stat().st_size - 4 * most))
        return output.read().decode(errors="replace").strip()[-most:]


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(group, number)


def _descendants(number: int) -> list[Any]:
    try:
        import psutil  # comes with BentoML
    except ImportError:
        return []
    try:
        return list(psutil.Process(number).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
