"""One body for all that goes wrong: ``{"error": {"code", "message", "request_id", …}}``."""

from __future__ import annotations

import http
import json
from typing import Any

from starlette.responses import Response

from xlt_serve.errors import TooMuch, UsageError, XltError
from xlt_serve.serving.admission import Busy, Closed
from xlt_serve.wire import Invalid


class Refusal(XltError):
    """An answer with a status of its own; ``headers`` go with it."""

    def __init__(
        self,
        status: int,
        code: str,
        value: object,
        rule: str,
        remedy: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(value, rule, remedy)
        self.status, self.code, self.headers = status, code, headers or {}


def response(error: Exception, request_id: str) -> Response:
    """What a client is told; of errors that are none of ours, only that there was one."""
    status, headers, more = 500, {}, dict[str, Any]()
    code, message = "internal", "the service failed; its log has more under this request id"
    if isinstance(error, XltError):
        code, message = error.code, str(error)
    if isinstance(error, Refusal):
        status, headers = error.status, error.headers
    elif isinstance(error, Invalid):
        status = 422
        more["details"] = [{"field": where, "problem": what} for where, what in error.problems]
    elif isinstance(error, UsageError):
        status = 422
    elif isinstance(error, TooMuch):
        status = 413
    elif isinstance(error, Busy):
        status, headers = 429, {"Retry-After": str(error.retry_after)}
        more["retry_after"] = error.retry_after
    elif isinstance(error, Closed):
        status, headers = 503, {"Retry-After": "1"}
    return made(status, code, message, request_id, headers, more)


def made(
    status: int,
    code: str,
    message: str,
    request_id: str,
    headers: dict[str, str] | None = None,
    more: dict[str, Any] | None = None,
) -> Response:
    error = {"code": code, "message": message, "request_id": request_id, **(more or {})}
    text = json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "backslashreplace")
    return Response(text, status, headers, media_type="application/json")


def shaped(status: int, body: bytes, request_id: str, headers: dict[str, str]) -> Response | None:
    """Somebody else's error (the server's, BentoML's) in our shape; None if it has it already."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("error"), dict):
        return None
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "error"
    kept = {name: text for name, text in headers.items() if name in ("allow", "retry-after")}
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    return made(status, code, phrase.lower(), request_id, kept)
