"""The routes: parse, ask the scheduler, answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from xlt_serve import modes, translation, wire
from xlt_serve.modes.base import CLASSIFY, Asked
from xlt_serve.modes.zero_shot import ZeroShot
from xlt_serve.runtime.session import available_cores
from xlt_serve.serving import answering, docs_page, failures, openapi, settings, tracing
from xlt_serve.serving import worker_state as shared
from xlt_serve.serving.answering import AnsweredQuery
from xlt_serve.serving.body import Gone, read_json
from xlt_serve.serving.compact_json import as_json
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.heartbeat import Heartbeat
from xlt_serve.serving.held_bodies import HeldBodies
from xlt_serve.serving.loading import Loader
from xlt_serve.serving.log import Log, excerpt
from xlt_serve.serving.metrics import SHARED, OneThread, Rendered, exposed, forget, metrics
from xlt_serve.serving.middleware import Gate
from xlt_serve.serving.registry import Registry, least_sizes
from xlt_serve.serving.routes import OPERATIONS
from xlt_serve.serving.scheduler import RunRecord, Scheduler
from xlt_serve.serving.settings import Environment
from xlt_serve.serving.swaps import Swaps
from xlt_serve.serving.unsent_answers import AnswerInPieces, Unsent, UnsentAnswers
from xlt_serve.types import Settings

SWITCH = 0.0005
PAGE = Path(__file__).parent.parent / "web" / "index.html"


class Service:
    """One worker's state, from start to shutdown."""

    def __init__(
        self, environment: Environment, log: Log, dead: Callable[[], None] = lambda: None
    ) -> None:
        self.environment, self.log = environment, log
        # Threads that tokenise hold the interpreter for so long at most while answers wait for it.
        sys.setswitchinterval(SWITCH)
        self.metrics = metrics()
        self.threads = environment.threads or max(1, available_cores() // environment.workers)
        streams = environment.streams or self.threads
        if environment.provider != "cpu":
            streams = 1  # a GPU runs one batch after the other anyway
        self.scheduler = Scheduler(environment.limits, streams=streams, on_run=self._ran)
        folder = environment.state or shared.default_folder()
        self.translators = None
        if environment.translators is not None:
            self.translators = translation.load(environment.translators, self.metrics.translated)
        loader = Loader(environment, self.threads, self.scheduler, self.translators, log)
        common = shared.Shared(folder, environment.bundles, on_killed=forget)
        self.registry = Registry(common, loader, log, self.metrics.warn)
        self.numbers = OneThread(exposed)
        self.models = OneThread(Rendered(self._described, SHARED, edition=self.registry.edition))
        self.swaps = Swaps(common, self.registry, loader, environment.load_timeout)
        self.bodies = HeldBodies(environment.max_bodies)
        self.unsent = UnsentAnswers(environment.max_unsent)
        self.heartbeat = Heartbeat(self._late, log, dead)
        log.on_lost = self.metrics.lost_lines.inc
        self.metrics.lost_lines.inc(log.lost)
        self.started = False

    @property
    def ready(self) -> bool:
        """Whether there is anything that it could answer with."""
        return self.started and bool(self.registry.all())

    def _late(self, seconds: float) -> None:
        self.metrics.lag.observe(seconds)
        self.scheduler.lagged(seconds)

    def _ran(self, run: RunRecord) -> None:
        self.metrics.run(run)
        self.metrics.waiting.set(self.scheduler.waiting_tokens())

    def _described(self) -> tuple[bytes, str]:
        return self.registry.described(self.environment.max_answer), "application/json"

    async def start(self) -> None:
        await asyncio.to_thread(self.registry.start)
        for loaded in self.registry.all():  # the scheduler learns how fast each is
            text = "a " * 16
            items = [(text, text) if loaded.classifier.bundle.manifest.pair else text] * 4
            try:
                await answering.answer(self.scheduler, loaded, Asked(items, Settings()), 60)
            except Exception as error:  # a worker that does not come up takes the others along
                self.log.failure("failure", error, bundle=loaded.name)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it for garbage, again and again, takes 4 %
        self.started = True
        names = {one.name: one.classifier.bundle.manifest.version for one in self.registry.all()}
        self.log.write("ready", bundles=names, provider=self.environment.provider)

    async def stop(self) -> None:
        self.started = False
        self.registry.stopping.set()
        await asyncio.to_thread(self.scheduler.close)
        await asyncio.to_thread(self.registry.stop)
        if self.translators is not None:
            self.translators.close()
        self.heartbeat.end()
        self.log.write("stopped")
        await asyncio.to_thread(self.log.flush)


def create(gate: Gate, environment: Environment | None = None) -> Starlette:
    """The application; the environment is read when it starts. ``app.state.dead``: what to do when its
    event loop stands still; nothing, unless whoever owns the process says so."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        given = environment or settings.read()
        gate.obey(given)
        service = app.state.service = Service(given, gate.log, app.state.dead)
        await service.start()
        gate.refuse_if_full = service.scheduler.refuse_if_full
        gate.enters = service.scheduler.enters
        on_signal(service.registry.stopping.set)
        try:
            yield
        finally:
            await service.stop()

    app = Starlette(routes=routed(), lifespan=lifespan)
    app.state.gate, app.state.log, app.state.dead = gate, gate.log, lambda: None
    app.router.redirect_slashes = False  # to where the client's own Host header says
    return app


def on_signal(tell: Callable[[], None]) -> None:
    """Tell that the service is to end. The server waits for the requests that are under way before it
    tells the application, and a swap is one."""
    if threading.current_thread() is not threading.main_thread():
        return  # no server of its own process: a test's

    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def handle(got: int, frame: FrameType | None, before: Any = before) -> None:
            tell()
            if callable(before):
                before(got, frame)

        signal.signal(number, handle)


Handler = Callable[[Request], Awaitable[Response]]


def refusing(handler: Handler) -> Handler:
    """Errors as answers; work whose client has left is dropped."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Gone:  # nobody reads this; raised, it would count as a failure of ours
            request.state.known["gone"] = True
            return Response(status_code=499)
        except Exception as error:
            known = request.state.known
            refused = failures.response(error, known["id"])
            if refused.status_code >= 500 and refused.status_code != 504:
                service_of(request).log.failure("failure", error, id=known["id"])
            return refused
        finally:
            if held := getattr(request.state, "held", None):
                service_of(request).bodies.leave(held)

    return handle


async def while_there(request: Request, work: Awaitable[AnsweredQuery]) -> AnsweredQuery:
    """The result of ``work``, which is cancelled when the client goes."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def classify(request: Request) -> Response:
    asked = wire.parse(wire.ClassifyRequest, await body_of(request))
    settings = wire.settings_of(asked, asked.mode)
    items = answering.items_of(asked, service_of(request).environment.max_items)
    return await answered(request, asked, settings, items, asked.translations)


async def zero_shot(request: Request) -> Response:
    asked = wire.parse(wire.ZeroShotRequest, await body_of(request))
    environment = service_of(request).environment
    texts = answering.listed(asked.texts, environment.max_items)
    answering.refuse_many_pairs(len(texts), len(asked.labels), environment.max_pairs)
    settings = wire.settings_of(asked, ZeroShot.name)
    sizes = least_sizes(asked.labels)
    answering.refuse_large_answer(texts, sizes, settings.top_k, environment.max_answer)
    return await answered(request, asked, settings, texts)


async def answered(
    request: Request,
    asked: wire.Addressed,
    settings: Settings,
    items: list[Any],
    translations: list[Any] | None = None,
) -> Response:
    """The answer of any mode: which bundle, whether it fits, the predictions; the log and the metrics
    hear of it."""
    service, known = service_of(request), request.state.known
    loaded = service.registry.chosen(asked.bundle, modes.of(settings).suits)
    loaded.classifier.refuse_unfit(settings, service.registry.bundles())
    largest, pair = service.environment.max_answer, loaded.bundle.manifest.pair
    mode = modes.of(settings)  # its own labels count in ``zero_shot``
    if mode.route == CLASSIFY and not mode.may_fail(loaded.classifier.context, settings):
        answering.refuse_large_answer(items, loaded.label_sizes, settings.top_k, largest, pair)
    timeout = timeout_of(service, asked)
    known |= {"bundle": loaded.name, "items": len(items), "mode": settings.mode}
    if service.environment.log_texts:
        known["texts"] = excerpt(items)
    query = Asked(items, settings, translations)
    try:
        reply = await while_there(
            request,
            answering.answer(
                service.scheduler, loaded, query, timeout, request.scope["state"]["client"]
            ),
        )
    except answering.TooLate:
        raise _too_late(timeout, service.environment.timeout) from None
    service.registry.refuse_altered(loaded)
    known |= {
        "tokens": reply.ticket.tokens,
        "queue_ms": round(1000 * (reply.ticket.waited or 0.0), 3),
        "run_ms": round(1000 * reply.ticket.ran, 3),
    }
    if reply.ticket.waited is not None:
        service.metrics.queue.observe(reply.ticket.waited)
    for failed in reply.failed:
        service.log.failure("item_failed", failed, id=known["id"], bundle=loaded.name)
    service.metrics.answered(loaded.name, reply.predictions)
    tracing.record(reply, {name: value for name, value in known.items() if name != "texts"})
    return await in_pieces(request, lambda hold: answering.body(reply, loaded, largest, hold))


Writing = Callable[[Callable[[int], None]], Awaitable[bytes]]


async def in_pieces(request: Request, write: Writing) -> Response:
    """What ``write`` gives, counted among the unsent answers from the time it is written."""
    held = service_of(request).unsent
    answer = Unsent(request.scope["state"]["client"])
    try:
        return AnswerInPieces(await write(lambda size: held.hold(answer, size)), answer, held)
    except BaseException:
        held.leave(answer)
        raise


def timeout_of(service: Service, asked: wire.Addressed) -> float:
    longest = service.environment.timeout
    return longest if asked.deadline_ms is None else min(longest, asked.deadline_ms / 1000)


def _too_late(timeout: float, longest: float) -> Refusal:
    """A deadline that the client set itself and missed is no failure of the service's."""
    rule = "the answer was not ready in time"
    if timeout < longest:
        return Refusal(408, "deadline", f"{timeout:g} s", rule, "send less, or give it more time")
    return Refusal(504, "deadline", f"{timeout:g} s", rule, "send less")


async def models(request: Request) -> Response:
    """Of this worker it says what is so now, of the others what was so a second ago."""

    async def write(hold: Callable[[int], None]) -> bytes:
        content, _ = await service_of(request).models()
        hold(len(content))
        return content

    return await in_pieces(request, write)


async def swap(request: Request) -> Response:
    service = service_of(request)
    asked = wire.parse(wire.SwapRequest, await body_of(request))
    await service.swaps.swap(asked.name, asked.bundle, asked.force)
    service.metrics.swaps.labels(asked.name).inc()
    return await models(request)


async def unload(request: Request) -> Response:
    service = service_of(request)
    asked = wire.parse(wire.UnloadRequest, await body_of(request))
    await service.swaps.unload(asked.name)
    service.metrics.unloads.labels(asked.name).inc()
    return await models(request)


async def page(request: Request) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
    return as_page(_page(), policy)


def as_page(content: bytes, policy: str) -> Response:
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return Response(content, headers=headers, media_type="text/html")


@cache
def _page() -> bytes:
    """Whole: a file would be read anew for each range that a request asks for, and it may ask for many."""
    return PAGE.read_bytes()


async def numbers(request: Request) -> Response:
    content, kind = await service_of(request).numbers()
    return Response(content, media_type=kind)


async def docs(request: Request) -> Response:
    return Response(_docs(), media_type="application/json")


@cache
def _docs() -> bytes:
    return as_json(openapi.document())


async def rendered(request: Request) -> Response:
    return as_page(_rendered(), docs_page.POLICY)


@cache
def _rendered() -> bytes:
    return docs_page.page(openapi.document()).encode()


async def body_of(request: Request) -> Any:
    service = service_of(request)
    return await read_json(request, service.environment, service.bodies)


HANDLERS: dict[str, Handler] = {
    "page": page,
    "docs": docs,
    "rendered": rendered,
    "numbers": numbers,
    "classify": refusing(classify),
    "zero_shot": refusing(zero_shot),
    "models": refusing(models),
    "swap": refusing(swap),
    "unload": refusing(unload),
}


def routed() -> list[Route]:
    """A route for each path of ours, with the handlers of its methods."""
    paths: dict[str, dict[str, Handler]] = {}
    for operation in OPERATIONS:
        if operation.ours:
            paths.setdefault(operation.path, {})[operation.method] = HANDLERS[operation.name]

    def by_method(handlers: dict[str, Handler]) -> Handler:
        async def handle(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            return await handlers[method](request)

        return handle

    return [
        Route(path, by_method(handlers), methods=list(handlers)) for path, handlers in paths.items()
    ]


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service
