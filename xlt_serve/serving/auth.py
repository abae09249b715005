"""Who may ask: API keys, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.routes import Key


class Keys:
    """Digests are compared, all of them: neither a key's length nor its place shows in the time."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def place(self, key: bytes) -> int | None:
        """Where in the list it is. Logs and queues know a key by this alone."""
        given, found = _digest(key) if self._digests else b"", None
        for place, digest in enumerate(self._digests):
            if hmac.compare_digest(given, digest):
                found = place
        return found


NONE = Keys()


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """What each key is good for. Where there are no ``users`` keys, everybody may do what users may."""

    users: Keys = NONE
    admins: Keys = NONE
    scrapers: Keys = NONE

    def holder(self, needed: Key, given: bytes, local: bool = False) -> str:
        """Which key lets the request pass, "" if none was needed and none of ours was given; else
        ``Refusal``. ``local``: only this machine reaches the service."""
        if not needed:
            return ""
        if (place := self.admins.place(given)) is not None:
            return f"admin key {place}"
        if needed == "admin":
            if self.admins:
                raise _unauthorized("an admin key")
            raise Refusal(
                403, "forbidden", "", "this service has no admin keys", "set XLT_ADMIN_KEYS"
            )
        if (place := self.users.place(given)) is not None:
            return f"key {place}"
        if needed == "scrape" and self.scrapers:  # who makes such keys wants them used
            if (place := self.scrapers.place(given)) is not None:
                return f"scrape key {place}"
            raise _unauthorized("a scrape key")
        if self.users and not (local and needed != "user"):
            raise _unauthorized("a key")
        return ""


def given(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key in ``Authorization: Bearer …`` or ``X-API-Key``, else nothing."""
    for name, value in headers:
        if name == b"x-api-key":
            return value.strip()
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
    return b""


def _unauthorized(what: str) -> Refusal:
    return Refusal(
        401,
        "unauthorized",
        "",
        f"this needs {what}",
        "send it as Authorization: Bearer KEY",
        {"WWW-Authenticate": "Bearer"},
    )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
