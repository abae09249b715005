"""Keys as PEM files, the same that ``openssl genpkey -algorithm ed25519`` makes."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xlt_serve.errors import UsageError, needed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

REQUIRED = "XLT_REQUIRE_SIGNATURE"
"""Names the file of public keys, one of which must have signed a bundle."""

LARGEST = 100_000
_PUBLIC = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The 32 bytes of an ed25519 key."""

    raw: bytes

    @property
    def id(self) -> str:
        """Sixteen hex digits by which a signature says whose it is."""
        return hashlib.sha256(self.raw).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Signers:
    """Whose signature is asked for: that of any of these keys. None of them: no signature is."""

    keys: tuple[PublicKey, ...] = ()
    source: str = ""

    def __bool__(self) -> bool:
        return bool(self.keys)


ANYBODY = Signers()


def required() -> Signers:
    """What ``XLT_REQUIRE_SIGNATURE`` asks for."""
    file = required_file()
    return ANYBODY if file is None else read_public(file)


def required_file() -> Path | None:
    place = os.environ.get(REQUIRED)
    return Path(place) if place else None


def read_public(file: Path) -> Signers:
    """One or several public keys, one after the other in a file: while a key is replaced, both hold."""
    content = _read(file)
    if b"PRIVATE KEY" in content:
        raise UsageError(file, "is a private key", "give the public one, and keep this one at home")
    blocks = _PUBLIC.findall(content)
    if not blocks:
        raise _no_key(file, "public")
    return Signers(tuple(_public(file, block) for block in blocks), str(file))


def read_private(file: Path) -> Ed25519PrivateKey:
    needed("cryptography", "signatures", "sign")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content, password = _read(file), None
    if b"ENCRYPTED PRIVATE KEY" in content:
        if not sys.stdin.isatty():
            raise UsageError(
                file, "is encrypted", "sign at a terminal, which asks for the password"
            )
        password = getpass.getpass(f"password of {file}: ").encode()
    try:
        key = load_pem_private_key(content, password)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _no_key(file, "private", ", or the password is wrong" if password else "") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(file, "private")
    return key


def write_new(file: Path) -> tuple[Path, PublicKey]:
    """A new private key in ``file``, which nobody else may read, and its public one beside it."""
    needed("cryptography", "signatures", "sign")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public_file = file.with_suffix(".pub")
    if public_file == file:
        raise UsageError(file, "is the name of a public key", "give another, such as KEY.pem")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    shown = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for name in (file, public_file):
        if os.path.lexists(name):
            raise UsageError(name, "is there already, and keys are never overwritten")
    _create(file, secret, 0o600)
    _create(public_file, shown, 0o644)
    return public_file, public_of(key)


def public_of(key: Ed25519PrivateKey) -> PublicKey:
    return PublicKey(key.public_key().public_bytes_raw())


def _public(file: Path, block: bytes) -> PublicKey:
    needed("cryptography", "signatures", "sign")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(block)
    except (ValueError, UnsupportedAlgorithm):
        raise _no_key(file, "public") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(file, "public")
    return PublicKey(key.public_bytes_raw())


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as handle:
            return handle.read(LARGEST)
    except OSError as error:
        raise UsageError(file, f"can't be read ({error.strerror})", "give a key's file") from None


def _create(file: Path, content: bytes, mode: int) -> None:
    """Never over a file that is there, and never for a moment with more permissions than ``mode``."""
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageError(file, "is there already, and keys are never overwritten") from None
    except OSError as error:
        raise UsageError(file, f"can't be written ({error.strerror})") from None
    with os.fdopen(handle, "wb") as out:
        out.write(content)


def _no_key(file: Path, kind: str, more: str = "") -> UsageError:
    return UsageError(
        file,
        f"is no {kind} ed25519 key in PEM{more}",
        "make a pair with `xlt sign --new-key KEY.pem`",
    )
