"""A server under attack: it is started, asked by a light client, attacked, and asked again."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import service_peers
from benchmarks.peers import environments
from benchmarks.pss import Sampler, family, family_megabytes
from benchmarks.service_peers import Peer
from benchmarks.siege import numbers
from benchmarks.siege.apart import Apart
from benchmarks.siege.assault import ADMIN, HEAVY, HOST, LIGHT, LONGEST_END, Target
from benchmarks.siege.attacks import Attack, assail
from xlt_serve.bench import loops
from xlt_serve.bench.http_load import Endpoint, received
from xlt_serve.bench.loops import LoadRun, Reply, Send
from xlt_serve.bench.server_process import ServerProcess, end
from xlt_serve.bench.texts import mixed
from xlt_serve.errors import XltError
from xlt_serve.runtime.session import available_cores

RATE = 25.0
"""Requests a second of the light client: little for any server here."""
PROBES = 5.0
LONGEST = 600.0
PATIENCE = 20.0
"""Seconds that a client waits for an answer to what it asked last."""
SERVERS = ("xlt", "bentoml", "infinity")
STARTING = {"xlt": 120.0, "bentoml": 300.0, "infinity": 300.0}
"""Seconds that a server may take to start."""


@dataclass(frozen=True)
class Plan:
    """Seconds of each part of an attack."""

    before: float = 5.0
    during: float = 20.0
    after: float = 5.0
    warm_up: float = 3.0

    @staticmethod
    def of(quick: bool) -> Plan:
        return Plan(1.5, 3.0, 2.0, 1.0) if quick else Plan()


def contender(kind: str, variables: dict[str, str], shell: str = "") -> Peer:
    """The server of this kind; ours with these variables."""
    if kind == "xlt":
        keys = {"XLT_API_KEYS": f"{LIGHT},{HEAVY}", "XLT_ADMIN_KEYS": ADMIN}
        peer = service_peers.ours("siege", None, **keys | variables)
    else:
        model = service_peers.small_checkpoint(service_peers.WORK / "small").absolute()
        threads = str(available_cores())
        if kind == "bentoml":
            given = {"CHECKPOINT": str(model), "THREADS": threads}
            peer = service_peers.bentoml("bentoml", "Plain", **given | variables)
        else:
            peer = service_peers.infinity("torch", model, threads)
            peer = replace(peer, environment=peer.environment | variables)
    if not shell:
        return peer
    return replace(peer, command=lambda port: ["sh", "-c", shell, "sh", *peer.command(port)])


@contextlib.contextmanager
def standing(
    kind: str = "xlt",
    workers: int = 1,
    prepare: Callable[[Path], dict[str, str]] | None = None,
    shell: str = "",
    variables: dict[str, str] | None = None,
) -> Iterator[tuple[ServerProcess, Target]]:
    """A server of its own, with a folder that goes with it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        given = {"XLT_STATE": str(folder / "state"), "XLT_WORKERS": str(workers)}
        given |= (prepare(folder) if prepare else {}) | (variables or {})
        with service_peers.served(contender(kind, given, shell), STARTING[kind]) as server:
            port = int(server.url.rsplit(":", 1)[1])
            yield server, Target(port, kind, server.process.pid, folder, 0.0)


async def get(port: int, path: str, patience: float = 10.0) -> tuple[int, bytes]:
    """On a connection of its own; 0: no answer."""
    writer = None
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            status, _, body = await received(reader)
            return status, body
    except (OSError, EOFError, ValueError):
        return 0, b""
    finally:
        if writer is not None:
            writer.close()


async def metrics(target: Target) -> str:
    """Empty where there are none, or none that can be had now."""
    status, body = await get(target.port, "/metrics")
    return body.decode(errors="replace") if status == 200 else ""


def lone_texts(target: Target) -> list[tuple[bytes, int]]:
    return [(target.body([text]), 1) for text in mixed(64)]


@contextlib.asynccontextmanager
async def asking(send: Send, rate: float, longest: float = LONGEST) -> AsyncIterator[Asking]:
    """Requests at this rate as long as the block lasts; ``run`` has them afterwards."""
    made = Asking()
    over = False
    task = asyncio.create_task(
        loops.open_loop(send, rate, longest, patience=PATIENCE, over=lambda: over)
    )
    try:
        yield made
        over = True
        made.run = await task
    finally:
        task.cancel()


@dataclass
class Asking:
    run: LoadRun = None  # type: ignore[assignment]
    begun: float = 0.0

    def __post_init__(self) -> None:
        self.begun = time.monotonic()

    def at(self, moment: float) -> float:
        """A moment of the clock, in seconds of the run."""
        return moment - self.begun


@contextlib.asynccontextmanager
async def light_client(
    target: Target, key: str = LIGHT, rate: float = RATE
) -> AsyncIterator[Asking]:
    url = f"http://{HOST}:{target.port}"
    async with (
        contextlib.aclosing(Endpoint(url, lone_texts(target), key, timeout=60)) as endpoint,
        asking(endpoint.send, rate) as made,
    ):
        yield made


async def besieged(attack: Attack, kind: str, plan: Plan) -> dict[str, Any]:
    """A row of the table; where the server does not start, why."""
    try:
        with standing(
            kind, attack.workers, attack.prepare, attack.shell, dict(attack.variables)
        ) as (server, target):
            return await _attacked(attack, server, replace(target, seconds=plan.during), plan)
    except (XltError, environments.NotInstalled) as error:
        return {"failed": str(error)[:300]}


async def _attacked(
    attack: Attack, server: ServerProcess, target: Target, plan: Plan
) -> dict[str, Any]:
    probe = "/health" if target.kind == "infinity" else "/livez"

    async def live(_: int) -> Reply:
        return Reply((await get(target.port, probe))[0])

    with contextlib.ExitStack() as stack:
        attacker = stack.enter_context(Apart(assail, attack.name, target))
        await attacker.ready()
        async with light_client(target):
            await asyncio.sleep(plan.warm_up)
        idle = family_megabytes(family(server.process.pid))
        memory = stack.enter_context(Sampler(server.process.pid))
        async with light_client(target) as light, asking(live, PROBES) as probes:
            await asyncio.sleep(plan.before)
            before = await metrics(target)
            begun, cpu = time.monotonic(), time.process_time()
            attacker.go()
            done = await attacker.result(plan.during + LONGEST_END + 10)
            last = max(begun, done.value["last"])
            cpu = time.process_time() - cpu
            took = time.monotonic() - begun
            await asyncio.sleep(max(0.0, last + plan.after - time.monotonic()))
            after = await metrics(target)
        if not attack.holds:
            stack.close()
        stopping = time.monotonic()
        await asyncio.to_thread(end, server.process, 60)
        stopped = time.monotonic() - stopping
    lag = numbers.largest(
        *(numbers.histogram(page, "xlt_loop_lag_seconds") for page in (before, after))
    )
    start, stop = light.at(begun), light.at(last)
    return {
        "before": numbers.seen(numbers.within(light.run, 0, start)),
        "during": numbers.seen(numbers.within(light.run, start, max(stop, start + 0.5))),
        "after": numbers.seen(numbers.within(light.run, stop, LONGEST)),
        "livez": numbers.seen(numbers.within(probes.run, probes.at(begun), probes.at(last))),
        "lag_ms": None if lag is None else 1000 * lag[1],
        "idle_mb": idle,
        "peak_mb": memory.peak,
        "ratio": memory.peak / idle,
        "attacker": done.value["got"],
        "wrong": attack.wrong(done.value["got"]),
        "sent_mb": done.value["sent"] / 1e6,
        "recovered": numbers.recovered(light.run, stop),
        "attack_seconds": last - begun,
        "generator_cpu": (cpu + done.cpu) / max(took, 1e-9) / available_cores(),
        "end_seconds": stopped,
    }
