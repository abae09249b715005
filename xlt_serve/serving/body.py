"""The body of a request: not too large, not too slow, and JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from xlt_serve.serving.failures import Refusal

DEEPEST = 100
"""Levels of lists and objects; the wire format has three."""


class Gone(Exception):
    """The client left: there is nobody to answer."""


async def read_json(request: Request, largest: int, seconds: float) -> Any:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(
            415, "content_type", kind[:50], "bodies are JSON", "send Content-Type: application/json"
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "content_encoding", "", "bodies are not compressed", "send plain JSON")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > largest:
        raise _too_large(largest)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > largest:
                    raise _too_large(largest)
    except TimeoutError:
        raise Refusal(
            408,
            "slow_body",
            f"{len(body)} bytes in {seconds:g} s",
            "the body did not come in time",
            headers={"Connection": "close"},
        ) from None
    except ClientDisconnect:
        raise Gone from None
    return parsed(bytes(body))


def parsed(body: bytes) -> Any:
    """JSON as RFC 8259 has it, at most so deep; half characters stay, for their item's own error."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError as error:
        raise Refusal(
            400, "not_json", f"byte {error.start}", "a body is UTF-8", "encode it so"
        ) from None
    except ValueError as error:
        # A decoder's message has a place in it; a number's may have digits, which say nothing.
        where = str(error) if isinstance(error, json.JSONDecodeError) else "a number"
        raise Refusal(400, "not_json", "", f"the body is not JSON ({where})") from None
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise _too_deep()
        depth += 1
        inside = [part for part in level if isinstance(part, dict | list)]
        level = [v for part in inside for v in (part.values() if isinstance(part, dict) else part)]
    return value


def _no_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no number of JSON", "", 0)


def _too_large(largest: int) -> Refusal:
    return Refusal(
        413,
        "body_too_large",
        "",
        f"a body may have {largest} bytes",
        "split the list into several requests",
        {"Connection": "close"},
    )


def _too_deep() -> Refusal:
    return Refusal(400, "not_json", "", f"the body is nested deeper than {DEEPEST} levels")
