"""Whose pages may ask from a browser: none but our own, unless ``XLT_CORS_ORIGINS`` names them.

Keys go in headers, never in cookies: so credentials are not allowed, and ``*`` gives nobody more than
what any program has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from xlt_serve.errors import UsageError

Headers = list[tuple[bytes, bytes]]

ANY = "*"
_ORIGIN = re.compile(r"https?://[a-z0-9.\-\[\]:]+")
_DEFAULT_PORT = re.compile(r"http://.*:80|https://.*:443")  # which no browser writes
_MAY_SEND: Headers = [
    (b"access-control-allow-headers", b"Authorization, Content-Type, X-API-Key, X-Request-Id"),
    (b"access-control-max-age", b"600"),
]
_READABLE = (b"access-control-expose-headers", b"Retry-After, X-Request-Id")
_VARIES = (b"vary", b"Origin")


class Origins:
    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._allowed = frozenset(origin.encode() for origin in origins)
        self._any = ANY.encode() in self._allowed

    def __bool__(self) -> bool:
        return bool(self._allowed)

    def added(self, asked: Headers) -> Headers:
        """What every answer to a request with these headers has."""
        if self._any:
            return [(b"access-control-allow-origin", b"*"), _READABLE]
        origin = _first(asked, b"origin")
        if origin not in self._allowed:
            return [_VARIES]
        return [(b"access-control-allow-origin", origin), _READABLE, _VARIES]

    def preflight(self, method: str, asked: Headers, takes: Iterable[str]) -> Headers | None:
        """The answer to a browser that asks what it may send to a path that ``takes`` these methods,
        beside ``added``; None: it is no such question, or one that gets no answer."""
        if method != "OPTIONS" or not _first(asked, b"access-control-request-method"):
            return None
        origin = _first(asked, b"origin")
        if origin not in self._allowed and not (self._any and origin):
            return None
        return [(b"access-control-allow-methods", ", ".join(takes).encode()), *_MAY_SEND]


def checked(origins: Iterable[str]) -> tuple[str, ...]:
    """As a browser writes them, which is how they are compared."""
    out = tuple(origins)
    for origin in out:
        if origin != ANY and (not _ORIGIN.fullmatch(origin) or _DEFAULT_PORT.fullmatch(origin)):
            raise UsageError(
                f"XLT_CORS_ORIGINS={origin[:50]}",
                "is no origin",
                "give e.g. https://app.example.org, without its default port, a path or a slash at the end, or *",
            )
    return out


def _first(headers: Headers, name: bytes) -> bytes:
    return next((value for each, value in headers if each == name), b"")
