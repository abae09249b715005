"""`xlt serve` as a user starts it: a process, a port, a request, a signal."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.xlt_serve.serving.processes import serving


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/classify", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        made: dict[str, Any] = json.load(answer)
    return made


def test_a_served_pair_bundle_answers(pair_bundle: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--bundle", str(pair_bundle)) as running:
        url = running.url
        body = post(url, {"pairs": [["rain", "snow"], ["a", ""]]})
        assert body["predictions"][0]["label"] in ("entailment", "contradiction")
        assert body["predictions"][1]["error"]["code"] == "empty"
        with pytest.raises(urllib.error.HTTPError) as refused:
            post(url, {})
        assert refused.value.code == 422
        assert json.load(refused.value)["error"]["code"] == "usage"
        running.process.send_signal(signal.SIGINT)
        ended = running.process.wait(timeout=30)
        assert ended in (0, 130, -signal.SIGINT), running.log.read_text()
