"""The attacks of the first report on the service, their siblings, and what came of them then.

Each is a function that does its worst until the time is over. ``first``: what the first edition of the
service did, as the report had it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import random
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.siege import materials
from benchmarks.siege.assault import (
    ADMIN,
    HEAVY,
    HELD,
    HOST,
    Assault,
    Line,
    Target,
    carried_out,
    head,
)
from xlt_serve.bench.http_load import Endpoint
from xlt_serve.bench.loops import Reply
from xlt_serve.bench.texts import mixed

Run = Callable[[Assault], Awaitable[None]]
Prepare = Callable[[Path], dict[str, str]]
START = b"GET /livez HTTP/1.1\r\nHost: x\r\n"


@dataclass(frozen=True)
class Attack:
    """``peers``: it needs nothing that only our service has. ``files``: file descriptors that the
    service may have; ``prepare`` makes what the service needs, and gives variables for it; ``shell``
    starts it (a redirection, say); ``holds``: its connections stay until the service has ended; ``never``:
    what the attacker may not get, as an expression."""

    name: str
    finding: str
    first: str
    run: Run
    peers: bool = False
    workers: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Prepare = materials.nothing
    shell: str = ""
    holds: bool = False
    never: str = r"(.*: )?50[0-2]"

    def wrong(self, got: Mapping[str, int]) -> list[str]:
        """What was got and may not be."""
        return [what for what in got if re.fullmatch(self.never, what)]


ATTACKS: dict[str, Attack] = {}


def attack(name: str, finding: str, first: str = "", **more: Any) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        ATTACKS[name] = Attack(name, finding, first, run, **more)
        return run

    return add


# Headers and connections.


MOST_SENT = 2_000_000_000
"""Bytes of an attack that never ends by itself."""


async def _endless(a: Assault, start: bytes, piece: bytes) -> None:
    """Four connections that send a piece after the other, opened anew where they are closed."""

    async def once() -> None:
        if (line := await a.connect()) is not None:
            await line.send(start)
            while not a.over and a.sent < MOST_SENT and await line.send(piece):
                pass
            await line.answer(5)
            line.close()

    await a.repeat(4, once, pause=0.05)


async def _again(a: Assault, data: bytes, connections: int) -> None:
    """The same bytes on one connection after the other."""

    async def once() -> None:
        if (line := await a.connect()) is not None:
            await line.send(data)
            await line.answer(10)
            line.close()

    await a.repeat(connections, once, pause=0.05)


@attack("endless headers", "1", "301 MB in: memory 337 → 1,123 MB", peers=True)
async def endless_headers(a: Assault) -> None:
    await _endless(a, START, (b"X-A: " + b"a" * 40 + b"\r\n") * 1300)


@attack("one endless header", "1", peers=True)
async def endless_header(a: Assault) -> None:
    await _endless(a, START + b"X-A: ", b"a" * 65536)


@attack("10,000 headers", "1", peers=True)
async def many_headers(a: Assault) -> None:
    await _again(a, START + b"a: b\r\n" * 10_000 + b"\r\n", 4)


async def _dribble(a: Assault, connections: int, first: bytes, drop: bytes) -> None:
    """Connections that send a drop a second, opened anew where they are closed."""

    async def once() -> None:
        if (line := await a.connect()) is None:
            return
        if await line.send(first):
            while not a.over and await line.send(drop):
                await asyncio.sleep(1)
        await line.answer(0.5)
        line.close()

    await a.repeat(connections, once, pause=0.5)


@attack("slow headers, 300 connections", "5", "open after 75 s", peers=True)
async def slow_headers(a: Assault) -> None:
    await _dribble(a, 300, START, b"X-A: b\r\n")


@attack("slow bodies, 200 connections", "5", peers=True)
async def slow_bodies(a: Assault) -> None:
    await _dribble(a, 200, head(100_000) + b'{"texts": ["', b"a")


async def _hold_idle(a: Assault, connections: int) -> None:
    lines: list[Line] = []
    for number in range(connections):
        if (line := await a.connect()) is not None:
            lines.append(line)
        if number % 50 == 0:
            await asyncio.sleep(0.02)
    await asyncio.sleep(a.left)
    a.got["still open"] += sum(not line.reader.at_eof() for line in lines)
    a.got["closed"] += sum(line.reader.at_eof() for line in lines)
    for line in lines:
        line.close()


@attack("1,500 idle connections", "5", peers=True)
async def idle(a: Assault) -> None:
    await _hold_idle(a, 1500)


@attack(
    "400 idle connections, 300 descriptors",
    "5",
    "every request reset",
    peers=True,
    shell='ulimit -n 300; exec "$@"',
)
async def idle_beyond_descriptors(a: Assault) -> None:
    await _hold_idle(a, 400)


@attack("1,000 pipelined requests a connection", "5", peers=True)
async def pipelined(a: Assault) -> None:
    await _again(a, (START + b"\r\n") * 1000, 8)


# Bodies and answers.


@attack("80 bodies of 7.9 MB held open", "18", "+658 MB", peers=True)
async def held_bodies(a: Assault) -> None:
    text = b'"' + b"a" * 90_000 + b'"'  # of one long string no more than 600 kB would be taken in
    data = head(7_950_000) + b'{"texts": [' + b",".join([text] * 87)

    async def hold() -> None:
        if (line := await a.connect()) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(a.left + 0.1):
                    await line.send(data)
            await line.answer(max(1.0, a.left))
            line.close()

    await asyncio.gather(*(hold() for _ in range(80)))


@attack("bodies of 30 MB", "low", "reset instead of 413", peers=True)
async def large_bodies(a: Assault) -> None:
    body = b'{"texts": ["' + b"a" * 30_000_000 + b'"]}'
    await a.repeat(2, lambda: a.ask(body, patience=20), pause=0.2)


@attack("endless chunks", "1", peers=True)
async def endless_chunks(a: Assault) -> None:
    start = (
        b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer " + HEAVY.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    await _endless(a, start, b"ffff\r\n" + b" " * 65535 + b"\r\n")


@attack(
    "48 clients that don't read",
    "6",
    "12 held 490 MB for 60 s; SIGTERM took over 45 s",
    peers=True,
    holds=True,
)
async def unread(a: Assault) -> None:
    """Requests for long answers, several a connection, and nobody reads."""
    loop = asyncio.get_running_loop()
    body = a.target.body(["a"] * 1000)
    data = (head(len(body), close=False) + body) * 8

    async def hold() -> None:
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        HELD.append(line)
        try:
            await loop.sock_connect(line, (HOST, a.target.port))
            async with asyncio.timeout(a.left):
                await loop.sock_sendall(line, data)
                a.got["asked, never read"] += 1
        except OSError as error:  # a TimeoutError is one
            a.got[f"stopped while asking ({type(error).__name__})"] += 1
        a.wrote(len(data))

    await asyncio.gather(*(hold() for _ in range(48)))
    await asyncio.sleep(a.left)
    a.wrote(0)


def _bodies(
    clients: int, make: Callable[[Assault], bytes], path: str = "/classify", fresh: bool = False
) -> Run:
    """Clients that send one body again and again; ``fresh``: another each time."""

    async def run(a: Assault) -> None:
        body = make(a)
        await a.repeat(clients, lambda: a.ask(make(a) if fresh else body, path), pause=0.05)

    return run


def _json(**body: Any) -> Callable[[Assault], bytes]:
    return lambda a: json.dumps(body).encode()


TEXT = "Die Mannschaft gewann das Finale."
BODIES: list[tuple[str, str, str, Run, dict[str, Any]]] = [
    (
        "language of 500 kB, 1,000 items",
        "2",
        "500 MB out, 1.35 GB; with 1 MB light waits 18.8 s",
        _bodies(2, _json(texts=["a"] * 1000, language="x" * 500_000)),
        {},
    ),
    (
        "translations of 1.2 million zeros",
        "3",
        "/livez silent for 25.7 s, 2.7 GB",
        _bodies(2, _json(texts=["a"], mode="paired", translations=[0] * 1_200_000)),
        {},
    ),
    (
        "translations of 100,000 zeros",
        "3",
        "light 3.0 s",
        _bodies(2, _json(texts=["a"], mode="paired", translations=[0] * 100_000)),
        {},
    ),
    (
        "160,000 unknown keys",
        "3",
        "loop blocked 1.35 s",
        _bodies(2, lambda a: json.dumps({f"k{n}": 0 for n in range(160_000)}).encode()),
        {"peers": True},
    ),
    (
        "7.8 MB of empty lists",
        "3",
        "loop blocked 4.5 s",
        _bodies(2, lambda a: a.target.body([[]] * 1_950_000)),
        {"peers": True},
    ),
    (
        "lists in lists, 100,000 deep",
        "3",
        "",
        _bodies(2, lambda a: b'{"texts": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        {"peers": True},
    ),
    (
        "7.8 MB of escapes",
        "3",
        "",
        _bodies(2, lambda a: a.target.body(["\U0001f600" * 650_000])),
        {"peers": True},
    ),
    (
        "numbers of 4 MB",
        "3",
        "",
        _bodies(2, lambda a: b'{"texts": ["a"], "seed": ' + b"9" * 4_000_000 + b"}"),
        {"peers": True},
    ),
    (
        "template of 1 MB, 100 labels",
        "10",
        "6.0 GB",
        _bodies(
            2,
            _json(
                texts=["a"] * 10,
                labels=[f"label {n}" for n in range(100)],
                template="x" * 1_000_000 + "{}",
                bundle="judge",
            ),
            "/zero_shot",
        ),
        {"prepare": materials.judge},
    ),
    (
        "100 labels, 1,000 texts",
        "10",
        "",
        _bodies(
            2,
            _json(texts=[TEXT] * 1000, labels=[f"label {n}" for n in range(100)], bundle="judge"),
            "/zero_shot",
        ),
        {"prepare": materials.judge},
    ),
    (
        "29 texts in windows of 8 tokens",
        "4",
        "",
        _bodies(1, _json(texts=["~!" * 50_000] * 29, long="windows", max_length=8)),
        {},
    ),
    (
        "one text of 33,000 tokens in windows",
        "4",
        "273 of 302 light requests refused",
        _bodies(1, _json(texts=["a b " * 24_999], long="windows")),
        {},
    ),
    (
        "synonyms, a word of 99 kB, alpha 1e-38",
        "15",
        "2.3 GB, 2,213 of 2,425 refused",
        _bodies(
            1,
            _json(
                texts=["the goal of the match, a game and a score " + "x" * 99_000],
                mode="smoothed",
                noise="synonym",
                words=1,
                language="en",
                alpha=1e-38,
                samples=5_000,
                seed=1,
            ),
        ),
        {"prepare": materials.synonyms},
    ),
    (
        "most draws, 1,000 texts",
        "4",
        "",
        _bodies(2, _json(texts=[TEXT] * 1000, mode="smoothed", samples=400, seed=1)),
        {},
    ),
    (
        "languages of 3 MB, with translators",
        "12",
        "100 requests: +370 MB, kept",
        _bodies(
            2,
            lambda a: json.dumps(
                {
                    "texts": ["a"],
                    "mode": "translate",
                    "language": f"{random.random()}" + "x" * 3_000_000,
                }
            ).encode(),
            fresh=True,
        ),
        {"prepare": materials.translators},
    ),
]
for _name, _finding, _first, _run, _more in BODIES:
    attack(_name, _finding, _first, **_more)(_run)


@attack(
    "scale 1e20: false certificates",
    "9",
    "certified to a radius of 1.17e19",
    never="50.|certified",
)
async def false_certificate(a: Assault) -> None:
    body = json.dumps(
        {"texts": [TEXT], "mode": "smoothed", "scale": 1e20, "radius": 1e19, "seed": 1}
    ).encode()

    async def once() -> None:
        status, answer = await a.ask(body)
        if status == 200:
            certified = any(p.get("certificate") for p in json.loads(answer)["predictions"])
            a.got["certified" if certified else "not certified"] += 1

    await a.repeat(1, once, pause=0.05)


# Clients that ask for much.


def heavy_bodies(a: Assault) -> list[tuple[bytes, int]]:
    texts = mixed(1000)
    return [(a.target.body(texts[n:] + texts[:n]), 1000) for n in (0, 250, 500, 750)]


async def _heavy(a: Assault, connections: int) -> None:
    """Closed loop, 1,000 items a request; after a refusal a client waits a little."""
    endpoint = Endpoint(f"http://{HOST}:{a.target.port}", heavy_bodies(a), HEAVY, timeout=120)
    number = 0

    async def client() -> None:
        nonlocal number
        while not a.over:
            number += 1
            reply: Reply = await endpoint.send(number)
            a.got[str(reply.status or "no answer")] += 1
            a.wrote(0)
            if reply.status != 200:
                await asyncio.sleep(0.2)

    clients = [asyncio.create_task(client()) for _ in range(connections)]
    _, late = await asyncio.wait(clients, timeout=a.left + 0.1)
    for task in late:
        task.cancel()
    a.got["not done in time"] += len(late)
    await endpoint.aclose()
    a.wrote(0)


HEAVIES = {
    1: "light p99 229 ms (21 alone)",
    2: "light p99 582 ms",
    4: "902 of 942 refused",
    8: "1,092 of 1,121 refused",
}
for _connections, _first in HEAVIES.items():
    attack(f"{_connections} × 1,000 items", "7", _first, peers=True)(
        functools.partial(_heavy, connections=_connections)
    )


# The operator's doors.


@attack(
    "swap: manifest with NaN",
    "16",
    "500, yet applied; GET /models 500 from then on",
    prepare=materials.swaps,
    never="swap nan: 200|swap good: (?!200).*|.*(/models: |: )50[0-3]",
)
async def swap_nan(a: Assault) -> None:
    await _swap(a, "nan")


@attack(
    "swap: a graph that loops",
    "16",
    "next swap 409, SIGTERM unfinished after 40 s",
    prepare=materials.swaps,
    variables={"XLT_LOAD_TIMEOUT": "10"},
    never="swap loops: 200|swap good: (?!200).*|.*(/models: |: )50[0-3]",
)
async def swap_loops(a: Assault) -> None:
    await _swap(a, "loops")


async def _swap(a: Assault, kind: str) -> None:
    """One swap that must fail, one that must not, and what is loaded then."""
    for folder in (kind, "good"):
        body = json.dumps({"name": "topics", "bundle": str(a.target.folder / folder)}).encode()
        await a.ask(body, "/models", ADMIN, patience=60, note=f"swap {folder}: ")
    if (line := await a.connect()) is not None:
        await line.send(f"GET /models HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADMIN}\r\n\r\n".encode())
        await line.answer(10, "then GET /models: ")
        line.close()


@attack(
    "XLT_STATE corrupt, a worker killed",
    "13",
    "clients and /livez hang",
    workers=2,
    never="workers at the end: ([01],.*|.*new: 0)",
)
async def corrupt_state(a: Assault) -> None:
    state = a.target.folder / "state"
    (state / "bundles.json").write_bytes(b"\x00{ this is no JSON")
    workers = materials.workers(a.target.process)
    os.kill(workers[0], signal.SIGKILL)
    await asyncio.sleep(a.left)
    a.wrote(0)
    now = materials.workers(a.target.process)
    a.got[f"workers at the end: {len(now)}, new: {len(set(now) - set(workers))}"] += 1


@attack("weights altered under the service", "11", "wrong answers under the same version",
        prepare=materials.own_copy, never=".*: (other answers|no answer)")  # fmt: skip
async def altered_weights(a: Assault) -> None:
    body = json.dumps({"texts": mixed(16)}).encode()
    weights = a.target.folder / "copy" / "weights.bin"

    async def answers() -> list[Any] | None:
        for _ in range(20):
            status, answer = await a.ask(body)
            if status == 200:
                return [one["probabilities"] for one in json.loads(answer)["predictions"]]
            await asyncio.sleep(0.2)
        return None

    async def compare(what: str) -> None:
        now = await answers()
        said = "the same answers" if now == before else "other answers"
        a.got[f"{what}: {'no answer' if now is None else said}"] += 1

    before = await answers()
    with weights.open("r+b") as file:
        file.seek(weights.stat().st_size // 2)
        file.write(os.urandom(100_000))
    await compare("altered")
    with weights.open("r+b") as file:
        file.truncate(1000)
    await compare("truncated")
    await asyncio.sleep(a.left)
    a.wrote(0)


# The log.


async def _busy_log(a: Assault) -> None:
    """Requests whose lines nobody reads."""
    await a.repeat(4, lambda: a.ask(a.target.body(["a"]), patience=10), pause=0.01)


attack(
    "nobody reads the log",
    "14",
    "everything stops after 223 answers",
    prepare=materials.stalled_log,
    shell='exec "$@" >"$XLT_SIEGE_LOG" 2>&1',
    peers=True,
)(_busy_log)
attack(
    "the log's disk is full",
    "14",
    "never ready",
    shell='exec "$@" >/dev/full 2>&1',
    peers=True,
)(_busy_log)


async def assail(name: str, target: Target) -> dict[str, Any]:
    """By name: a process that is to do it can't be given a function made here."""
    return await carried_out(ATTACKS[name].run, target)
