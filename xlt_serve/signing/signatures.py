"""``bundle.sig``: a line for each signature, ``ed25519``, the key's id, the signature in base64."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xlt_serve.errors import BundleAltered, BundleError, needed
from xlt_serve.signing.key_files import PublicKey, Signers, public_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE = "bundle.sig"
LARGEST = 100_000
"""Bytes that the file may have: some hundred signatures."""

_SIGN_IT = "sign it: `xlt sign BUNDLE --key PRIVATE.pem`"


@dataclass(frozen=True, slots=True)
class Signature:
    key: str
    raw: bytes

    def line(self) -> str:
        return f"ed25519 {self.key} {base64.b64encode(self.raw).decode()}\n"


def message(manifest: bytes) -> bytes:
    """What is signed. The first words are there so that no signature of another kind fits."""
    return b"xlt-serve bundle " + hashlib.sha256(manifest).hexdigest().encode()


def sign(manifest: bytes, key: Ed25519PrivateKey) -> Signature:
    return Signature(public_of(key).id, key.sign(message(manifest)))


def add(folder: Path, signature: Signature) -> None:
    """Beside those of other keys; an older one of the same key goes."""
    try:
        kept = [one for one in read(folder) if one.key != signature.key]
    except BundleError:  # none, or nonsense
        kept = []
    _write(folder / SIGNATURE, "".join(one.line() for one in (*kept, signature)).encode())


def check(folder: Path, manifest: bytes, signers: Signers) -> None:
    """Raise a BundleError unless one of these keys signed these very bytes of ``bundle.json``."""
    if not signers:
        return
    found = read(folder)
    for key in signers.keys:
        theirs = [one for one in found if one.key == key.id]
        if any(_fits(key, one, manifest) for one in theirs):
            return
    wanted = ", ".join(key.id for key in signers.keys)
    if {one.key for one in found} & {key.id for key in signers.keys}:
        raise BundleAltered(
            folder / SIGNATURE,
            f"is no signature of this bundle.json by {wanted}: it was altered, or signed for another",
            f"restore the bundle, or {_SIGN_IT}",
        )
    others = ", ".join(sorted({one.key for one in found})) or "nobody"
    raise BundleError(
        folder, f"is signed by {others}, {signers.source} asks for {wanted}", _SIGN_IT
    )


def read(folder: Path) -> list[Signature]:
    """The signatures of a bundle, none of them checked."""
    file = folder / SIGNATURE
    if not file.is_file():  # a pipe, say, would have us wait for ever
        raise BundleError(folder, f"is not signed: it has no {SIGNATURE}", _SIGN_IT)
    try:
        with file.open("rb") as handle:
            content = handle.read(LARGEST + 1)
    except OSError as error:
        raise BundleError(
            file, f"can't be read ({error.strerror})", "mend its permissions"
        ) from None
    if len(content) > LARGEST:
        raise BundleError(file, f"has over {LARGEST} bytes, no such file has", _SIGN_IT)
    return [_parsed(file, number, line) for number, line in enumerate(content.splitlines(), 1)]


def carry(origin: Path, copy: Path) -> None:
    """The signatures of a bundle to a copy of it, beside those that it has: services that ask for others
    may share it. One that can't be carried is missed where it is asked for."""
    with contextlib.suppress(BundleError, OSError):
        given, there = read(origin), list[Signature]()
        with contextlib.suppress(BundleError):  # none, or nonsense
            there = read(copy)
        merged = "".join(one.line() for one in dict.fromkeys((*there, *given))).encode()
        if set(given) - set(there) and len(merged) <= LARGEST:
            _write(copy / SIGNATURE, merged)


def _fits(key: PublicKey, signature: Signature, manifest: bytes) -> bool:
    needed("cryptography", "signatures", "sign")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(signature.raw, message(manifest))
    except InvalidSignature:
        return False
    return True


def _parsed(file: Path, number: int, line: bytes) -> Signature:
    try:
        kind, key, text = line.decode("ascii").split(" ")
        raw = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        kind, key, raw = "", "", b""
    if kind != "ed25519" or len(raw) != 64:
        raise BundleError(
            file,
            f"line {number} is no signature: ed25519, a key's id, 64 bytes in base64",
            _SIGN_IT,
        )
    return Signature(key, raw)


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes it at the same time."""
    with tempfile.NamedTemporaryFile(
        dir=file.parent, prefix=f"{SIGNATURE}.", delete=False
    ) as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
        os.fchmod(handle.fileno(), 0o644)
    Path(handle.name).replace(file)
