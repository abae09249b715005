from __future__ import annotations

import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.xlt_serve.signing.conftest import Pair
from xlt_serve.errors import DependencyError, UsageError
from xlt_serve.signing import key_files

Keys = Callable[[str], Pair]


def test_a_private_key_is_its_owner_s_alone(keys: Keys) -> None:
    pair = keys("release")
    assert stat.S_IMODE(pair.private.stat().st_mode) == 0o600
    [public] = key_files.read_public(pair.public).keys
    assert public == key_files.public_of(key_files.read_private(pair.private))
    assert pair.private.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")


@pytest.mark.parametrize("there", ["key.pem", "key.pub"])
@pytest.mark.parametrize("link", [False, True])
def test_no_key_is_overwritten(tmp_path: Path, there: str, link: bool) -> None:
    if link:  # to nowhere: writing through it would make a file elsewhere
        (tmp_path / there).symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / there).write_text("precious")
    with pytest.raises(UsageError, match="never overwritten"):
        key_files.write_new(tmp_path / "key.pem")
    assert [file.name for file in tmp_path.iterdir()] == [there]


def test_a_private_key_is_not_called_as_a_public_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the name of a public key"):
        key_files.write_new(tmp_path / "key.pub")


def test_a_private_key_in_place_of_the_public_one_is_refused(keys: Keys) -> None:
    pair = keys("release")
    with pytest.raises(UsageError, match="is a private key"):
        key_files.read_public(pair.private)
    with pytest.raises(UsageError, match="is no private ed25519 key"):
        key_files.read_private(pair.public)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nothing",
        b"\x00\xff" * 100,
        b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        b"-----BEGIN PUBLIC KEY-----\n\xff\n-----END PUBLIC KEY-----\n",
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"is no public ed25519 key.*xlt sign --new-key"):
        key_files.read_public(file)
    with pytest.raises(UsageError, match="is no private ed25519 key"):
        key_files.read_private(file)


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, file = ec.generate_private_key(ec.SECP256R1()), tmp_path / "ec"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    with pytest.raises(UsageError, match="is no public ed25519 key"):
        key_files.read_public(file)
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    with pytest.raises(UsageError, match="is no private ed25519 key"):
        key_files.read_private(file)


def test_an_encrypted_key_asks_for_its_password(
    tmp_path: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography.hazmat.primitives import serialization

    key, file = key_files.read_private(keys("release").private), tmp_path / "locked.pem"
    locked = serialization.BestAvailableEncryption(b"secret")
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(pem, kind, locked))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(UsageError, match="is encrypted"):
        key_files.read_private(file)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: "secret")
    assert key_files.public_of(key_files.read_private(file)) == key_files.public_of(key)
    monkeypatch.setattr("getpass.getpass", lambda prompt: "wrong")
    with pytest.raises(UsageError, match="or the password is wrong"):
        key_files.read_private(file)


def test_openssl_makes_the_same_keys(tmp_path: Path) -> None:
    private, public = tmp_path / "o.pem", tmp_path / "o.pub"
    try:
        made = subprocess.run(
            ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    if made.returncode:
        pytest.skip("this openssl has no ed25519")
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    assert key_files.read_public(public).keys == (
        key_files.public_of(key_files.read_private(private)),
    )


def test_a_file_may_hold_several_public_keys(tmp_path: Path, keys: Keys) -> None:
    both = tmp_path / "both.pub"
    both.write_bytes(keys("old").public.read_bytes() + keys("new").public.read_bytes())
    assert len(set(key_files.read_public(both).keys)) == 2


def test_the_variable_that_names_no_key_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(key_files.REQUIRED, raising=False)
    assert not key_files.required()
    monkeypatch.setenv(key_files.REQUIRED, "")
    assert not key_files.required()
    for place in (tmp_path / "missing", tmp_path, Path(" ")):
        monkeypatch.setenv(key_files.REQUIRED, str(place))
        with pytest.raises(UsageError, match="can't be read"):
            key_files.required()


def test_the_extra_is_named_where_it_is_missing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = keys("release")

    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("xlt_serve.errors.importlib.import_module", missing)
    with pytest.raises(DependencyError, match=r"cryptography: .*pip install 'xlt-serve\[sign\]'"):
        key_files.read_public(pair.public)
