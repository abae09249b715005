"""A client of the service: ``Client(url).classify(texts)``, and the same with ``await``.

Long lists go in several requests, answers come back as one. What is busy (429), not there yet (503)
or out of reach is asked again, later each time; every request is safe to repeat.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Unpack

from xlt_serve.errors import DependencyError, UsageError, XltError

try:
    import httpx

    from xlt_serve import modes, wire
    from xlt_serve.modes.keywords import ClassifyKeywords, ZeroShotRequestKeywords
except ModuleNotFoundError as error:  # pragma: no cover
    raise DependencyError(
        error.name or "httpx", "is not installed", "pip install 'xlt-serve[client]'"
    ) from None

AGAIN = (429, 503)
LONGEST_WAIT = 30.0


class ServiceError(XltError):
    """What the service said, or that it said nothing; ``status`` is 0 then."""

    def __init__(self, url: str, status: int, code: str, message: str) -> None:
        super().__init__(url, message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Policy:
    """``retries`` after the first try; waits begin at ``pause`` seconds and double. ``items`` and
    ``size`` (bytes of JSON) bound one request, ``concurrency`` how many are under way at once."""

    timeout: float = 60.0
    retries: int = 6
    pause: float = 0.2
    items: int = 256
    size: int = 1_000_000
    concurrency: int = 4

    def wait(self, tried: int, retry_after: str | None) -> float:
        """Seconds to wait after so many tries: what the service says, else doubling, with a random
        part so that clients who were refused together don't come back together."""
        doubled = min(LONGEST_WAIT, self.pause * 2.0**tried)
        try:
            told = min(LONGEST_WAIT, float(retry_after or 0))
        except ValueError:  # a date
            told = 0.0
        return max(told, doubled / 2) + random.uniform(0, doubled / 2)


def split(
    items: Sequence[Any], policy: Policy, beside: Sequence[Any] = ()
) -> Iterator[tuple[int, int]]:
    """(start, end) of each request: at least one item, else within both bounds. ``beside``: what goes
    with each item."""
    start, size = 0, 0
    for number, item in enumerate(items):
        length = len(encoded([item, *beside[number : number + 1]]))
        if number > start and (number - start >= policy.items or size + length > policy.size):
            yield start, number
            start, size = number, 0
        size += length
    if start < len(items) or not items:
        yield start, len(items)


def requests(kind: str, items: Sequence[Any], asked: dict[str, Any], policy: Policy) -> list[Any]:
    """The bodies of the requests; what belongs to items goes with them, votes share a seed."""
    if isinstance(items, str):
        raise UsageError("a single text", "classify takes a list", "write classify([text])")
    given = {name: value for name, value in asked.items() if value is not None}
    mode = modes.MODES.get(given.get("mode", "plain"))
    if mode is not None and "seed" in modes.option_names(mode):
        given.setdefault("seed", secrets.randbits(48))
    out = []
    for start, end in split(items, policy, given.get("translations", ())):
        body = given | {kind: list(items[start:end])}
        if "translations" in given:
            body["translations"] = given["translations"][start:end]
        out.append(body)
    return out


def swapping(name: str, bundle: str | None, force: bool) -> dict[str, Any]:
    """The body of a swap. Older services don't know ``force``, and need none."""
    return {"name": name, "bundle": bundle, **({"force": True} if force else {})}


def merged(answers: Sequence[wire.Answer]) -> wire.Answer:
    """One answer: all predictions, the last bundle, the sum of the timings."""
    total = {
        name: sum(getattr(answer.timings, name) for answer in answers)
        for name in ("queue_ms", "run_ms", "predict_ms")
    }
    return wire.Answer(
        predictions=[prediction for answer in answers for prediction in answer.predictions],
        bundle=answers[-1].bundle,
        timings=wire.Timings(**total),
    )


class _Base:
    def __init__(self, url: str, key: str | None = None, policy: Policy | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(url, "is no address of a service", "give http://HOST:PORT")
        self.url, self.policy = url.rstrip("/"), policy or Policy()
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def _again(self, tried: int, answer: httpx.Response | None) -> float | None:
        """How long to wait before the next try; None: there is none."""
        if tried >= self.policy.retries or (answer is not None and answer.status_code not in AGAIN):
            return None
        return self.policy.wait(tried, answer.headers.get("retry-after") if answer else None)

    def _read(self, answer: httpx.Response) -> Any:
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.is_success and body is not None:
            return body
        told = body.get("error") if isinstance(body, dict) else None
        if not isinstance(told, dict):
            told = {"code": "http", "message": f"answered {answer.status_code} {answer.text[:100]}"}
        raise ServiceError(
            self.url, answer.status_code, str(told.get("code")), str(told.get("message"))
        )

    def _unreached(self, error: httpx.HTTPError) -> ServiceError:
        return ServiceError(
            self.url, 0, "unreachable", f"does not answer ({type(error).__name__}: {error})"
        )


class Client(_Base):
    """For scripts. May be used from several threads, and as a context manager."""

    def __init__(self, url: str, key: str | None = None, policy: Policy | None = None) -> None:
        super().__init__(url, key, policy)
        self._http = httpx.Client(timeout=self.policy.timeout, headers=self._headers)
        self.close = weakref.finalize(self, self._http.close)  # also when nobody calls it

    def classify(
        self,
        texts: Sequence[Any] | None = None,
        *,
        pairs: Sequence[Any] | None = None,
        **options: Unpack[ClassifyKeywords],
    ) -> wire.Answer:
        """One prediction for each text or pair, in order; options as on the wire."""
        if (texts is None) == (pairs is None):
            raise UsageError("classify", "takes texts or pairs, one of them")
        if pairs is not None:
            return self._all("classify", requests("pairs", pairs, {**options}, self.policy))
        return self._all("classify", requests("texts", texts or [], {**options}, self.policy))

    def zero_shot(
        self,
        texts: Sequence[Any],
        labels: Sequence[str],
        **options: Unpack[ZeroShotRequestKeywords],
    ) -> wire.Answer:
        """One of these labels for each text, or several with ``multi_label=True``."""
        asked = {"labels": list(labels), **options}
        return self._all("zero_shot", requests("texts", texts, asked, self.policy))

    def models(self) -> wire.Models:
        return wire.read(wire.Models, self._send("GET", "models"), self.url)

    def swap(self, name: str, bundle: str | None = None, *, force: bool = False) -> wire.Models:
        """``force``: also if its labels or its task are others than those of this name."""
        answer = self._send("POST", "models", swapping(name, bundle, force))
        return wire.read(wire.Models, answer, self.url)

    def unload(self, name: str) -> wire.Models:
        answer = self._send("POST", "models/unload", {"name": name})
        return wire.read(wire.Models, answer, self.url)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _all(self, route: str, bodies: list[Any]) -> wire.Answer:
        def one(body: Any) -> wire.Answer:
            return wire.read(wire.Answer, self._send("POST", route, body), self.url)

        if len(bodies) == 1:
            return one(bodies[0])
        with ThreadPoolExecutor(self.policy.concurrency) as pool:
            return merged(list(pool.map(one, bodies)))

    def _send(self, method: str, route: str, body: Any = None) -> Any:
        content = None if body is None else encoded(body)
        tried = 0
        while True:
            answer: httpx.Response | None = None
            try:
                answer = self._http.request(method, f"{self.url}/{route}", content=content)
            except httpx.HTTPError as error:
                wait = self._again(tried, None) if repeatable(error) else None
                if wait is None:
                    raise self._unreached(error) from None
            else:
                wait = self._again(tried, answer)
                if wait is None:
                    return self._read(answer)
            time.sleep(wait)
            tried += 1


class AsyncClient(_Base):
    """The same for event loops."""

    def __init__(self, url: str, key: str | None = None, policy: Policy | None = None) -> None:
        super().__init__(url, key, policy)
        self._http = httpx.AsyncClient(timeout=self.policy.timeout, headers=self._headers)
        self._turn = asyncio.Semaphore(self.policy.concurrency)

    async def classify(
        self,
        texts: Sequence[Any] | None = None,
        *,
        pairs: Sequence[Any] | None = None,
        **options: Unpack[ClassifyKeywords],
    ) -> wire.Answer:
        """One prediction for each text or pair, in order; options as on the wire."""
        if (texts is None) == (pairs is None):
            raise UsageError("classify", "takes texts or pairs, one of them")
        if pairs is not None:
            return await self._all("classify", requests("pairs", pairs, {**options}, self.policy))
        return await self._all("classify", requests("texts", texts or [], {**options}, self.policy))

    async def zero_shot(
        self,
        texts: Sequence[Any],
        labels: Sequence[str],
        **options: Unpack[ZeroShotRequestKeywords],
    ) -> wire.Answer:
        """One of these labels for each text, or several with ``multi_label=True``."""
        asked = {"labels": list(labels), **options}
        return await self._all("zero_shot", requests("texts", texts, asked, self.policy))

    async def models(self) -> wire.Models:
        return wire.read(wire.Models, await self._send("GET", "models"), self.url)

    async def swap(
        self, name: str, bundle: str | None = None, *, force: bool = False
    ) -> wire.Models:
        """``force``: also if its labels or its task are others than those of this name."""
        answer = await self._send("POST", "models", swapping(name, bundle, force))
        return wire.read(wire.Models, answer, self.url)

    async def unload(self, name: str) -> wire.Models:
        answer = await self._send("POST", "models/unload", {"name": name})
        return wire.read(wire.Models, answer, self.url)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _all(self, route: str, bodies: list[Any]) -> wire.Answer:
        async def one(body: Any) -> wire.Answer:
            async with self._turn:
                return wire.read(wire.Answer, await self._send("POST", route, body), self.url)

        answers = await asyncio.gather(*(one(body) for body in bodies))
        return answers[0] if len(answers) == 1 else merged(answers)

    async def _send(self, method: str, route: str, body: Any = None) -> Any:
        content = None if body is None else encoded(body)
        tried = 0
        while True:
            answer: httpx.Response | None = None
            try:
                answer = await self._http.request(method, f"{self.url}/{route}", content=content)
            except httpx.HTTPError as error:
                wait = self._again(tried, None) if repeatable(error) else None
                if wait is None:
                    raise self._unreached(error) from None
            else:
                wait = self._again(tried, answer)
                if wait is None:
                    return self._read(answer)
            await asyncio.sleep(wait)
            tried += 1


def repeatable(error: httpx.HTTPError) -> bool:
    """A worker that was killed or is not up yet; not one that took too long, or a wrong address."""
    return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout)


def encoded(body: Any) -> bytes:
    """JSON; half characters as escapes, so that the service can tell which item has them."""
    return json.dumps(body, ensure_ascii=True).encode()
