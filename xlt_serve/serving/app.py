"""The routes: parse, ask the scheduler, answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from xlt_serve import modes, translation, wire
from xlt_serve.classifier import Classifier, load
from xlt_serve.modes.base import Asked
from xlt_serve.modes.zero_shot import ZeroShot
from xlt_serve.runtime.graph_io import GRAPHS
from xlt_serve.runtime.session import available_cores
from xlt_serve.serving import answering, failures, openapi, settings, tracing
from xlt_serve.serving import worker_state as shared
from xlt_serve.serving.answering import AnsweredQuery
from xlt_serve.serving.auth import Keys
from xlt_serve.serving.body import Gone, read_json
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.log import Log
from xlt_serve.serving.metrics import exposed, forget, metrics
from xlt_serve.serving.middleware import Gate
from xlt_serve.serving.registry import Registry
from xlt_serve.serving.routes import OPERATIONS
from xlt_serve.serving.scheduler import RunRecord, Scheduler
from xlt_serve.serving.settings import Environment
from xlt_serve.text.tokens import Tokens
from xlt_serve.types import Settings

SWITCH = 0.0005
PAGE = Path(__file__).parent.parent / "web" / "index.html"


class Service:
    """One worker's state, from start to shutdown."""

    def __init__(self, environment: Environment, log: Log) -> None:
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
        common = shared.Shared(folder, environment.bundles, on_killed=forget)
        self.registry = Registry(common, self._opened, log)
        self.ready = False

    def _ran(self, run: RunRecord) -> None:
        self.metrics.run(run)
        self.metrics.waiting.set(self.scheduler.waiting_tokens())

    def _opened(self, place: str) -> Classifier:
        """Loaded and warm: a client's first request must not be the one that opens a graph."""
        classifier = load(
            place,
            provider=self.environment.provider,
            threads=self.threads,
            translators=self.translators,
            synonyms=self.environment.synonyms,
        )
        for graph in classifier.bundle.manifest.graphs:
            if graph in GRAPHS and graph in (self.environment.warm or GRAPHS):
                self.scheduler.open(classifier.runners, graph)
        for words in (1, 8, 64):
            text = "a " * words
            item = (text, text) if classifier.bundle.manifest.pair else text
            classifier.predict([item] * 2)
            if self.scheduler.streams > 1:
                [tokens] = classifier.encoder.encode([item])
                assert isinstance(tokens, Tokens)
                classifier.runners.of("plain", single_threaded=True).run(tokens.pieces)
        return classifier

    async def start(self) -> None:
        await asyncio.to_thread(self.registry.load_all)
        for loaded in self.registry.all():  # the scheduler learns how fast each is
            text = "a " * 16
            items = [(text, text) if loaded.classifier.bundle.manifest.pair else text] * 4
            await answering.answer(self.scheduler, loaded, Asked(items, Settings()), 60)
        gc.collect()
        gc.freeze()  # what is loaded stays: looking through it for garbage, again and again, takes 4 %
        self.ready = True
        names = {one.name: one.classifier.bundle.manifest.version for one in self.registry.all()}
        self.log.write("ready", bundles=names, provider=self.environment.provider)

    async def stop(self) -> None:
        self.ready = False
        await asyncio.to_thread(self.scheduler.close)
        self.registry.shared.leave()
        if self.translators is not None:
            self.translators.close()
        self.log.write("stopped")


def create(gate: Gate, environment: Environment | None = None) -> Starlette:
    """The application; the environment is read when it starts."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        given = environment or settings.read()
        gate.keys, gate.admins = Keys(given.keys), Keys(given.admin_keys)
        service = app.state.service = Service(given, gate.log)
        await service.start()
        gate.refuse_if_full = service.scheduler.refuse_if_full
        following = asyncio.create_task(service.registry.follow())
        try:
            yield
        finally:
            following.cancel()
            await service.stop()

    return Starlette(routes=routed(), lifespan=lifespan)


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
    texts = answering.listed(asked.texts, service_of(request).environment.max_items)
    return await answered(request, asked, wire.settings_of(asked, ZeroShot.name), texts)


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
    timeout = timeout_of(service, asked)
    known |= {"bundle": loaded.name, "items": len(items), "mode": settings.mode}
    if service.environment.log_texts:
        known["texts"] = items
    query = Asked(items, settings, translations)
    try:
        reply = await while_there(
            request, answering.answer(service.scheduler, loaded, query, timeout)
        )
    except answering.TooLate:
        raise _too_late(timeout, service.environment.timeout) from None
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
    return as_json(answering.body(reply, loaded))


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
    return as_json(service_of(request).registry.described())


async def swap(request: Request) -> Response:
    service = service_of(request)
    asked = wire.parse(wire.SwapRequest, await body_of(request))
    await service.registry.swap(asked.name, asked.bundle)
    service.metrics.swaps.labels(asked.name).inc()
    return as_json(service.registry.described())


async def page(request: Request) -> Response:
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return FileResponse(PAGE, headers=headers)


async def numbers(request: Request) -> Response:
    content, kind = await asyncio.to_thread(exposed)
    return Response(content, media_type=kind)


async def docs(request: Request) -> Response:
    return as_json(openapi.document())


async def body_of(request: Request) -> Any:
    environment = service_of(request).environment
    return await read_json(request, environment.max_body, environment.read_timeout)


HANDLERS: dict[str, Handler] = {
    "page": page,
    "docs": docs,
    "numbers": numbers,
    "classify": refusing(classify),
    "zero_shot": refusing(zero_shot),
    "models": models,
    "swap": refusing(swap),
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


def as_json(value: Any) -> Response:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text.encode("utf-8"), media_type="application/json")
