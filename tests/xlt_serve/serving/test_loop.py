"""Attacks on the event loop of a real worker: each is refused or answered, and nobody else waits for it.

The bound is generous, since the machines that run tests have other things to do. The benchmark of attacks
has the strict one."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.xlt_serve.serving.conftest import valid
from tests.xlt_serve.serving.processes import Running, serving

MEGABYTES = 7_900_000
SLOWEST = "5.0"
"""A bucket of the histogram: no beat of the loop may come later."""


def filled(before: bytes, part: bytes, after: bytes, size: int = MEGABYTES) -> bytes:
    return before + part * ((size - len(before) - len(after)) // len(part)) + after


def texts(content: bytes) -> bytes:
    text = b'"' + filled(b"", content, b"", 590_000) + b'",'
    return filled(b'{"texts":[', text, b'"a"]}')


ATTACKS: dict[str, tuple[bytes, int]] = {
    "translations of zeros": (
        filled(b'{"texts":["a"],"translations":[', b"0,", b"0]}", 3_600_000),
        413,
    ),
    "fewer zeros": (b'{"texts":["a"],"translations":[' + b"0," * 8000 + b"0]}", 422),
    "unknown keys": (b"{" + b",".join(b'"%d":1' % n for n in range(160_000)) + b"}", 413),
    "fewer unknown keys": (b"{" + b",".join(b'"%d":1' % n for n in range(4_000)) + b"}", 422),
    "one key": (filled(b"{", b'"a":1,', b'"a":1}'), 413),
    "lists": (filled(b'{"texts":[', b"[],", b"[]]}"), 413),
    "fewer lists": (b'{"texts":[' + b"[]," * 4000 + b"[]]}", 413),
    "a thousand lists": (b'{"texts":[' + b"[]," * 999 + b"[]]}", 200),
    "depth": (b"[" * MEGABYTES, 400),
    "an integer": (filled(b'{"seed":', b"9", b"}"), 413),
    "a fraction": (filled(b'{"scale":0.', b"9", b"}"), 413),
    "a long number": (b'{"seed":' + b"9" * 800_000 + b"}", 400),
    "blanks": (filled(b'{"texts":', b" ", b'["a"]}'), 413),
    "one string": (filled(b'{"texts":["', b"a", b'"]}'), 413),
    "quotes": (b'"' * MEGABYTES, 413),
    "large texts": (texts(b"a "), 200),
    "escapes": (texts(rb"\u00e9\n"), 200),
    "half characters": (texts(rb"\ud83d"), 200),
    "backslashes": (texts(rb"\\\""), 200),
    "wide characters": (texts("aaaaaaaaa😀".encode()), 200),
    "a thousand texts": (
        filled(b'{"texts":[', b'"' + b"a b " * 1975 + b'",', b'"a"],"long":"error"}'),
        200,
    ),
    "short windows": (
        b'{"texts":['
        + b'"'
        + b'","'.join([b"~!" * 50_000] * 29)
        + b'"],"long":"windows","max_length":8}',
        413,
    ),
    "a long language": (
        b'{"texts":["a"],"language":"' + b"x" * 500_000 + b'"}',
        422,
    ),
    "half a language": (rb'{"texts":["a"],"language":"\ud800"}', 422),
    "a long bundle": (b'{"texts":["a"],"bundle":"' + b"x" * 500_000 + b'"}', 422),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("loop"), "--bundle", "topics") as made:
        yield made


def late(running: Running) -> float:
    """Beats of the loop that came later than they may."""
    told = httpx.get(f"{running.url}/metrics", timeout=20).text
    name = "xlt_loop_lag_seconds_bucket"
    counts = {
        bucket: float(told.partition(f'{name}{{le="{bucket}"}} ')[2].partition("\n")[0])
        for bucket in (SLOWEST, "+Inf")
    }
    assert counts["+Inf"] > 0
    return counts["+Inf"] - counts[SLOWEST]


def attack(running: Running, body: bytes) -> tuple[int, bytes]:
    line = http.client.HTTPConnection(running.url.removeprefix("http://"), timeout=60)
    try:
        line.request("POST", "/classify", body, {"Content-Type": "application/json"})
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_holds_up_nobody(running: Running, name: str) -> None:
    body, expected = ATTACKS[name]
    before, waits, over = late(running), list[float](), threading.Event()

    def probe() -> None:
        while not over.is_set():
            begun = time.monotonic()
            assert httpx.get(f"{running.url}/livez", timeout=20).status_code == 200
            waits.append(time.monotonic() - begun)
            time.sleep(0.05)

    beside = threading.Thread(target=probe)
    beside.start()
    try:
        status, said = attack(running, body)
    finally:
        over.set()
        beside.join()
    assert status in (expected, 429) if expected == 200 else status == expected, said[:300]
    valid("Error" if status >= 400 else "Answer", json.loads(said))
    assert late(running) == before
    assert max(waits) < 15
