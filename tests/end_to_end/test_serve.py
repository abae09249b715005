"""`xlt serve` as a user starts it: a process, a port, a request, a signal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def served(bundle: Path, log: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "xlt_serve.cli", "serve", "--bundle", str(bundle)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={k: v for k, v in os.environ.items() if k != "PROMETHEUS_MULTIPROC_DIR"},
        )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{url}/readyz", timeout=5)
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
        yield url
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (0, 130, -signal.SIGINT), log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/classify", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        made: dict[str, Any] = json.load(answer)
    return made


def test_a_served_pair_bundle_answers(pair_bundle: Path, tmp_path: Path) -> None:
    with served(pair_bundle, tmp_path / "log") as url:
        body = post(url, {"pairs": [["rain", "snow"], ["a", ""]]})
        assert body["predictions"][0]["label"] in ("entailment", "contradiction")
        assert body["predictions"][1]["error"]["code"] == "empty"
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(url, {})
        assert refused.value.code == 422
        assert json.load(refused.value)["error"]["code"] == "usage"
