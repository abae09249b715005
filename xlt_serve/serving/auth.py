"""Who may ask: API keys, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable


class Keys:
    """Digests are compared, all of them: neither a key's length nor its place shows in the time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def has(self, key: bytes) -> bool:
        given = _digest(key)
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found


def given(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The key in ``Authorization: Bearer …`` or ``X-API-Key``, else nothing."""
    for name, value in headers:
        if name == b"x-api-key":
            return value.strip()
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip()
    return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
