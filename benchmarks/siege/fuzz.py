"""Bad requests, always the same for a seed: JSON of wrong shapes, odd headers, what is hardly HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.siege import materials
from benchmarks.siege.apart import Apart
from benchmarks.siege.assault import ADMIN, HEAVY, HOST, Target
from benchmarks.siege.field import standing
from xlt_serve.bench.http_load import received

CLIENTS = 4
"""Few enough that hardly one is refused for want of room: a refused request tests nothing."""
PATIENCE = 30.0
TRIES = 20
SHARES = {"json": 0.6, "broken json": 0.15, "headers": 0.15, "raw": 0.1}
TEXTS = ["Das Spiel endete unentschieden.", "the goal", "雨が降っている。", "a"]
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/classify", {"texts": TEXTS[:2]}),
    ("/classify", {"texts": TEXTS, "top_k": 3, "threshold": 0.5, "long": "windows"}),
    ("/classify", {"texts": TEXTS[:1], "mode": "smoothed", "samples": 24, "seed": 1, "radius": 0.1,
                   "alpha": 0.001, "scale": 0.1, "noise": "gaussian"}),
    ("/classify", {"texts": ["the goal"], "mode": "smoothed", "noise": "synonym", "words": 1,
                   "language": "en", "samples": 24, "synonyms": "groups"}),
    ("/classify", {"texts": TEXTS[:1], "mode": "paired", "bundle": "topics-paired",
                   "translations": ["A draw."], "language": "de"}),
    ("/classify", {"texts": TEXTS[:1], "mode": "translate", "translations": ["A draw."]}),
    ("/classify", {"pairs": [["A man sleeps.", "Somebody is asleep."]], "bundle": "judge"}),
    ("/zero_shot", {"texts": TEXTS[:1], "labels": ["sports", "travel"], "bundle": "judge",
                    "template": "This is about {}.", "multi_label": True, "scorer": "nli"}),
    ("/models", {"name": "topics", "bundle": "nowhere"}),
]  # fmt: skip
EDGES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 0.0, -0.0, 0.5,
    1e-300, 5e-324, 1e300, -1e300, float("nan"), float("inf"), float("-inf"), "", " ", "a", "\x00",
    "\ud800", "a\udfffb", "\u202e", "🙂" * 50, "x" * 5000, "../../etc/passwd", "{}", "{}{}", "en", "*",
    [], [[]], [None], [""], ["a", "b"], ["a"] * 1001, [["a", "b"]], [["a"]], [["a", "b", "c"]], [0],
    [{}], {}, {"": ""}, {"*": "{}"}, {"en": None},
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bad:
    """``whole``: it ends like a request, so that an answer is due; else the sender ends in the middle."""

    kind: str
    data: bytes
    whole: bool = True


def bad_requests(seed: int, count: int) -> Iterator[Bad]:
    generator = random.Random(seed)
    kinds = {"json": _json, "broken json": _broken, "headers": _headers, "raw": _raw}
    for _ in range(count):
        (kind,) = generator.choices(list(SHARES), list(SHARES.values()))
        data, whole = kinds[kind](generator)
        yield Bad(kind, data, whole)


def _request(
    path: str, body: bytes, more: str = "", method: str = "POST", kind: str = "application/json"
) -> bytes:
    key = ADMIN if path == "/models" else HEAVY
    return (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    ).encode("utf-8", "surrogatepass") + body


def _value(generator: random.Random, depth: int = 0) -> Any:
    if depth < 3 and generator.random() < 0.2:
        inner = [_value(generator, depth + 1) for _ in range(generator.randrange(4))]
        if generator.random() < 0.5:
            return inner
        return {str(_value(generator, 3)): value for value in inner}
    return generator.choice(EDGES)


def _sensible(generator: random.Random) -> tuple[str, dict[str, Any]]:
    """Swaps seldom: one that happens to be right takes seconds."""
    weights = [0.1 if path == "/models" else 1.0 for path, _ in REQUESTS]
    return generator.choices(REQUESTS, weights)[0]


def _mutated(generator: random.Random) -> tuple[str, Any]:
    """A sensible request with one to three things wrong."""
    path, body = _sensible(generator)
    body = dict(body)
    for _ in range(generator.randint(1, 3)):
        way = generator.random()
        if way < 0.5 and body:
            body[generator.choice(list(body))] = _value(generator)
        elif way < 0.6 and body:
            del body[generator.choice(list(body))]
        elif way < 0.8:  # an option of another mode
            name, value = generator.choice(list(generator.choice(REQUESTS)[1].items()))
            body[name] = value if generator.random() < 0.5 else _value(generator)
        elif way < 0.9:
            body[generator.choice(["", "x" * 100, "__proto__", "texts ", "\ud800"])] = _value(
                generator
            )
        else:
            return path, _value(generator)
    return path, body


def _json(generator: random.Random) -> tuple[bytes, bool]:
    path, body = _mutated(generator)
    return _request(path, json.dumps(body).encode()), True


def _broken(generator: random.Random) -> tuple[bytes, bool]:
    """Bytes that are no JSON, or not quite."""
    path, body = _mutated(generator)
    data = bytearray(
        json.dumps(body, ensure_ascii=generator.random() < 0.5).encode("utf-8", "surrogatepass")
    )
    way = generator.randrange(6)
    if way == 0:
        del data[generator.randrange(len(data) + 1) :]
    elif way == 1:
        for _ in range(generator.randint(1, 8)):
            data[generator.randrange(len(data))] = generator.randrange(256)
    elif way == 2:
        data += generator.choice([b",", b"}", b"\x00", b"{}", b"//", b"\xef\xbb\xbf"])
    elif way == 3:
        data[:0] = generator.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"NaN", b"[" * 2000])
    elif way == 4:
        data = bytearray(b'{"texts": ["a"], "texts": ' + bytes(data) + b"}")
    else:
        data = bytearray(data.decode("utf-8", "replace").encode("utf-16"))
    return _request(path, bytes(data)), True


HEADERS = [
    "Transfer-Encoding: identity\r\n", "Content-Encoding: gzip\r\n", "Expect: 100-continue\r\n",
    "Expect: something\r\n", "X-Request-Id: " + "x" * 200 + "\r\n", "X-Request-Id: \x7f\r\n",
    "Authorization: Basic " + "x" * 50 + "\r\n", "X-API-Key:\r\n", "X-API-Key: ключ\r\n",
    "Accept: nothing/at-all\r\n", "Accept-Encoding: " + "gzip," * 500 + "\r\n", "Cookie: " + "a=b; " * 800 + "\r\n",
    "X-Forwarded-For: " + "1.2.3.4, " * 300 + "\r\n", "X-Forwarded-For: ' OR 1=1\r\n", "Forwarded: for=_x\r\n",
    "Origin: http://evil.example\r\n", "Range: bytes=0-1,5-\r\n", "Host: y\r\n", "Host:\r\n",
    "traceparent: 00-" + "0" * 32 + "-" + "0" * 16 + "-01\r\n", "traceparent: zz\r\n", "baggage: " + "k=v," * 100 + "\r\n",
    "Connection: close\r\n", "Connection: upgrade\r\nUpgrade: websocket\r\n", "Upgrade: h2c\r\nHTTP2-Settings: AA\r\n",
    "X: " + "y" * 20_000 + "\r\n", "A: b\r\n" * 150, "Content-Length: 3\r\n", "X-Ü: ü\r\n",
]  # fmt: skip
KINDS = ["", "text/plain", "application/json; charset=utf-16", "application/xml", "multipart/form-data",
         "application/vnd.bentoml+pickle", "application/octet-stream", "a" * 300, "application/json, x"]  # fmt: skip
PATHS = ["/classify/", "//classify", "/classify?x=" + "y" * 500, "/CLASSIFY", "/classify%00", "/classify%0d%0aX:y",
         "/../classify", "/models/..%2f", "/", "/docs.json", "/metrics", "/livez", "/readyz", "/healthz", "/favicon.ico",
         "/" + "a" * 3000, "/%", "/%zz", "/\xff", "*", "http://evil.example/classify", "/schema.json", "/static_content/x"]  # fmt: skip
METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "POST"]


def _headers(generator: random.Random) -> tuple[bytes, bool]:
    path, body = _sensible(generator)
    data = json.dumps(body).encode()
    if generator.random() < 0.6:
        more = "".join(generator.choices(HEADERS, k=generator.randint(1, 3)))
        return _request(path, data, more), True
    if generator.random() < 0.4:
        return _request(path, data, kind=generator.choice(KINDS)), True
    method = generator.choice(METHODS)
    return _request(generator.choice(PATHS), data, method=method), True


SHAPES: list[tuple[bytes, bool]] = [
    (b"GET / HTTP/0.9\r\n\r\n", True),
    (b"GET / HTTP/1.0\r\n\r\n", True),
    (b"GET / HTTP/1.1\r\n\r\n", True),
    (b"GET / HTTP/3.7\r\nHost: x\r\n\r\n", True),
    (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", True),
    (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", True),
    (b"GET /\r\n\r\n", True),
    (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", True),
    (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", True),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", True),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", False),
    (b"\x00" * 1000, True),
    (b"\r\n" * 500, False),
    (b"GET / HTTP/1.1\r\nHost: x\r\n folded: y\r\n\r\n", True),
    (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", True),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA\x00B: c\r\n\r\n", True),
    (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", True),
    (b"GET / HTTP/1.1\nHost: x\n\n", True),
    (b"GET / HTTP/1.1\r\nHost: x\r\n", False),
    (b"GET / HT", False),
    (b"", False),
]
BODIED: list[tuple[bytes, bool]] = [
    (b"Content-Length: -5\r\n\r\n{}", True),
    (b"Content-Length: +2\r\n\r\n{}", True),
    (b"Content-Length: 0x2\r\n\r\n{}", True),
    (b"Content-Length: 2, 2\r\n\r\n{}", True),
    (b"Content-Length: 99999999999999999999\r\n\r\n{}", True),
    (b"Content-Length: 9000000\r\n\r\n{}", True),
    (b"Content-Length: 500\r\n\r\n{}", False),
    (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", True),
    (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
    (b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", True),
    (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", True),
    (b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n", True),
    (b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n", True),
    (b"Transfer-Encoding: chunked\r\n\r\n2;" + b"x" * 20_000 + b"\r\n{}\r\n0\r\n\r\n", True),
    (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"A: b\r\n" * 200 + b"\r\n", True),
    (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}", False),
    (b"\r\n{}", True),
]  # fmt: skip


def _raw(generator: random.Random) -> tuple[bytes, bool]:
    if generator.random() < 0.5:
        return generator.choice(SHAPES)
    rest, whole = generator.choice(BODIED)
    start = f"POST {generator.choice(['/classify', '/zero_shot'])} HTTP/1.1\r\nHost: x\r\n"
    key = f"Authorization: Bearer {HEAVY}\r\nContent-Type: application/json\r\n"
    return (start + key).encode() + rest, whole


@dataclass
class Fuzzed:
    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    unanswered: int = 0
    refused: int = 0

    def add(self, bad: Bad, said: str) -> None:
        self.statuses.setdefault(bad.kind, Counter())[said] += 1
        unanswered = bad.whole and not said.isdigit()
        self.unanswered += unanswered
        if (unanswered or said.startswith("5")) and len(self.failures) < 50:
            self.failures.append({"said": said, "kind": bad.kind, "data": repr(bad.data[:600])})


async def fuzz_load(target: Target, seed: int, count: int) -> Fuzzed:
    """Each client has a connection, which it uses as long as the server keeps it."""
    out, requests = Fuzzed(), bad_requests(seed, count)

    async def client() -> None:
        line = None
        for bad in requests:
            for _ in range(TRIES):
                line, said = await _sent(target, bad, line)
                if said != "429":
                    break
                out.refused += 1
                await asyncio.sleep(0.1)
            out.add(bad, said)
        if line is not None:
            line[1].close()

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return out


Open = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _sent(target: Target, bad: Bad, line: Open | None) -> tuple[Open | None, str]:
    """What became of it: a status, or how the connection ended; and the connection if it is kept."""
    fresh = line is None or bad.kind == "raw"
    if fresh and line is not None:
        line[1].close()
    try:
        async with asyncio.timeout(PATIENCE):
            line = await asyncio.open_connection(HOST, target.port) if fresh else line
            assert line is not None
            line[1].write(bad.data)
            if not bad.whole:
                line[1].write_eof()
            status, fields, _ = await _answered(line[0], bad)
    except TimeoutError:
        said = "no answer in time"
    except (OSError, EOFError, ValueError) as error:
        if not fresh:  # the server had closed it before: that is no answer to this
            assert line is not None
            line[1].close()
            return await _sent(target, bad, None)
        said = "reset" if isinstance(error, ConnectionError) else "closed without an answer"
    else:
        if bad.kind != "raw" and fields.get("connection", "").lower() != "close":
            return line, str(status)
        said = str(status)
    if line is not None:
        line[1].close()
    return None, said


async def _answered(reader: asyncio.StreamReader, bad: Bad) -> tuple[int, dict[str, str], bytes]:
    if bad.data.startswith(b"HEAD "):  # it has the length of a body that does not come
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        return int(lines[0].split()[1]), {"connection": "close"}, b""
    status, fields, body = await received(reader)
    while status == 100:
        status, fields, body = await received(reader)
    return status, fields, body


async def fuzz(count: int, seed: int) -> dict[str, Any]:
    with standing(prepare=materials.everything) as (_, target), Apart(
        fuzz_load, target, seed, count
    ) as load:  # fmt: skip
        await load.ready()
        load.go()
        done = await load.result(60 + count / 10)
    found: Fuzzed = done.value
    total = sum(found.statuses.values(), Counter[str]())
    return {
        "requests": count,
        "seed": seed,
        "per_second": count / done.seconds,
        "statuses": dict(sorted(total.items())),
        "by_kind": {kind: dict(sorted(said.items())) for kind, said in found.statuses.items()},
        "server_errors": sum(n for said, n in total.items() if said.startswith("5")),
        "unanswered": found.unanswered,
        "sent_again_after_429": found.refused,
        "failures": found.failures,
    }


EXCLUDED = ("positive_data_acceptance",)
"""Checks of schemathesis that are left out: whether texts fit a bundle, and options each other, is not in
a schema, nor is that 1.0 is no whole number; such a request is refused with 422."""


async def described_api(seconds: float, seed: int) -> dict[str, Any]:
    """schemathesis, by its own command, against the service's description of itself."""
    with standing(prepare=materials.everything) as (_, target):
        command = [
            *(str(Path(sys.executable).parent / "schemathesis"), "run"),
            f"http://{HOST}:{target.port}/docs.json",
            *("--max-time", f"{seconds:.0f}", "--seed", str(seed), "--continue-on-failure"),
            *("--header", f"Authorization: Bearer {ADMIN}", "--no-color"),
            *("--exclude-checks", ",".join(EXCLUDED), "--generation-database", "none"),
            *("--rate-limit", "auto", "--request-timeout", "90"),
        ]
        begun = time.monotonic()
        done = await asyncio.create_subprocess_exec(
            *command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=target.folder,
            env=os.environ | {"PYTHONPATH": ""},
        )
        try:
            async with asyncio.timeout(seconds + 300):
                said, _ = await done.communicate()
        finally:
            if done.returncode is None:
                done.kill()
    return {
        "seconds": time.monotonic() - begun,
        "seed": seed,
        "exit": done.returncode,
        "excluded": list(EXCLUDED),
        "summary": said.decode(errors="replace")[-6000:],
    }
