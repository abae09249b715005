"""The body of a request: not too large, not too slow, and JSON."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from starlette.requests import ClientDisconnect, Request

from xlt_serve.serving import bounded_json
from xlt_serve.serving.bounded_json import Tally
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.held_bodies import FREE, Held, HeldBodies
from xlt_serve.serving.settings import Environment
from xlt_serve.serving.turns import SMALL, by_turns, turn

VALUES_PER_ITEM, MORE_VALUES = 8, 1000
"""A pair and its two translations are six; options, labels and templates come on top."""


class Gone(Exception):
    """The client left: there is nobody to answer."""


async def read_json(request: Request, bounds: Environment, bodies: HeldBodies) -> Any:
    _refuse_kinds(request)
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > bounds.max_body:
        raise _too_large(bounds.max_body)
    tally = Tally(most_values(bounds))
    try:
        async with asyncio.timeout(bounds.read_timeout) as timeout:
            held = request.state.held = Held(timeout, getattr(request.state, "client", ""))
            async for chunk in request.stream():
                bodies.add(held, chunk)
                if held.given_up:
                    raise _too_much(bounds.max_bodies)
                if len(held.body) > bounds.max_body:
                    raise _too_large(bounds.max_body)
                tally.feed(chunk)
            held.timeout = None
    except TimeoutError:
        if held.given_up:
            raise _too_much(bounds.max_bodies) from None
        raise _too_slow(len(held.body), bounds.read_timeout) from None
    except ClientDisconnect:
        raise Gone from None
    body = bytes(held.body)
    held.body.clear()
    value = await by_turns(bounded_json.parse(body), small=len(body) <= SMALL)
    if len(body) > FREE:  # one wide character makes a text four bytes a character
        async with turn():
            bodies.hold(held, weight(value))
        if held.given_up:
            raise _too_much(bounds.max_bodies)
    return value


def weight(value: Any) -> int:
    """Bytes of memory, more or less."""
    if isinstance(value, dict):
        return sum(weight(name) + weight(part) for name, part in value.items())
    return sum(map(weight, value)) if isinstance(value, list) else sys.getsizeof(value)


def most_values(bounds: Environment) -> int:
    return bounds.max_values or VALUES_PER_ITEM * bounds.max_items + MORE_VALUES


def _refuse_kinds(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(
            415, "content_type", kind[:50], "bodies are JSON", "send Content-Type: application/json"
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "content_encoding", "", "bodies are not compressed", "send plain JSON")


def _too_large(largest: int) -> Refusal:
    return Refusal(
        413,
        "body_too_large",
        "",
        f"a body may have {largest} bytes",
        "split the list into several requests",
        {"Connection": "close"},
    )


def _too_much(most: int) -> Refusal:
    return Refusal(
        429,
        "too_many_bodies",
        "",
        f"the service holds {most} bytes of requests, which is all that it may",
        "try again in 1 s, or send less at once",
        {"Connection": "close", "Retry-After": "1"},
    )


def _too_slow(length: int, seconds: float) -> Refusal:
    return Refusal(
        408,
        "slow_body",
        f"{length} bytes in {seconds:g} s",
        "the body did not come in time",
        headers={"Connection": "close"},
    )
