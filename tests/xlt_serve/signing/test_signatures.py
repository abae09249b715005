from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.xlt_serve.signing.conftest import Pair
from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.bundle import MANIFEST
from xlt_serve.errors import BundleAltered, BundleError, UsageError
from xlt_serve.signing import key_files, signatures
from xlt_serve.signing.signatures import SIGNATURE

Keys = Callable[[str], Pair]
Make = Callable[[str], Path]


def sign(folder: Path, pair: Pair) -> None:
    key = key_files.read_private(pair.private)
    signatures.add(folder, signatures.sign((folder / MANIFEST).read_bytes(), key))


@pytest.fixture
def pair(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Its signature is required from here on."""
    pair = keys("release")
    monkeypatch.setenv(key_files.REQUIRED, str(pair.public))
    return pair


@pytest.fixture
def signed(make: Make, pair: Pair) -> Path:
    folder = make("signed")
    sign(folder, pair)
    return folder


def test_a_signed_bundle_is_loaded(signed: Path) -> None:
    assert bundles.load(signed).manifest.name == "signed"
    assert SIGNATURE not in bundles.load(signed).manifest.files


def test_a_bundle_without_a_signature_is_refused_only_where_one_is_required(
    make: Make, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make("unsigned")
    with pytest.raises(BundleError, match=r"is not signed: it has no bundle\.sig; sign it: `xlt"):
        bundles.load(folder)
    with pytest.raises(BundleError, match="is not signed"):
        bundles.load("topics")  # what ships is no exception
    monkeypatch.delenv(key_files.REQUIRED)
    assert bundles.load(folder)
    with pytest.raises(BundleError, match="is not signed"):
        load(folder, signed_by=pair.public)


def test_another_s_signature_is_refused(make: Make, pair: Pair, keys: Keys) -> None:
    folder, other = make("other"), keys("other")
    sign(folder, other)
    [wanted] = key_files.read_public(pair.public).keys
    [found] = key_files.read_public(other.public).keys
    says = rf"is signed by {found.id}, .*release\.pub asks for {wanted.id}; sign it"
    with pytest.raises(BundleError, match=says):
        bundles.load(folder)


def test_another_s_signature_under_our_id_is_refused(make: Make, pair: Pair, keys: Keys) -> None:
    folder = make("forged")
    [ours] = key_files.read_public(pair.public).keys
    theirs = key_files.read_private(keys("other").private)
    forged = signatures.sign((folder / MANIFEST).read_bytes(), theirs)
    signatures.add(folder, signatures.Signature(ours.id, forged.raw))
    with pytest.raises(BundleAltered, match="is no signature of this"):
        bundles.load(folder)


def test_an_altered_manifest_is_refused_before_it_is_parsed(
    signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = signed / MANIFEST
    raw = json.loads(file.read_text())
    raw["labels"] = ["b", "a"]
    raw["version"] = bundles.content_version(raw)
    file.write_text(json.dumps(raw))
    monkeypatch.setattr("xlt_serve.manifest.parse", lambda content: pytest.fail("parsed"))
    with pytest.raises(BundleAltered, match=r"it was altered, or signed for another; restore"):
        bundles.load(signed)


@pytest.mark.parametrize("change", [b" ", b"\n"])
def test_not_a_byte_may_change(signed: Path, change: bytes) -> None:
    with (signed / MANIFEST).open("ab") as file:
        file.write(change)
    with pytest.raises(BundleAltered, match="is no signature of this"):
        bundles.load(signed)


def test_an_altered_file_is_refused(signed: Path) -> None:
    (signed / "tokenizer.json").write_text("[]")
    with pytest.raises(BundleAltered, match=r"tokenizer.json: was altered"):
        bundles.load(signed)


def test_the_signature_of_another_bundle_is_refused(make: Make, signed: Path) -> None:
    other = make("other")
    shutil.copy(signed / SIGNATURE, other)
    with pytest.raises(BundleAltered, match="or signed for another"):
        bundles.load(other)


@pytest.mark.parametrize(
    "content",
    [
        b"garbage",
        b"\n",
        b"\x00\xff",
        b"ed25519 0123456789abcdef AAAA\n",
        b"ed25519 0123456789abcdef " + b"A" * 87 + b"\n",
        b"ed25519 0123456789abcdef " + b"*" * 88 + b"\n",
        b"rsa 0123456789abcdef " + b"A" * 86 + b"==\n",
        b"ed25519  " + b"A" * 86 + b"==  \n",
    ],
)
def test_garbage_is_no_signature(signed: Path, content: bytes) -> None:
    (signed / SIGNATURE).write_bytes(content)
    with pytest.raises(BundleError, match="line 1 is no signature: ed25519, a key's id"):
        bundles.load(signed)


def test_an_empty_file_signs_nothing(signed: Path) -> None:
    (signed / SIGNATURE).write_bytes(b"")
    with pytest.raises(BundleError, match="is signed by nobody"):
        bundles.load(signed)


def test_a_signature_file_is_bounded(signed: Path) -> None:
    (signed / SIGNATURE).write_bytes(b"a" * (signatures.LARGEST + 1))
    with pytest.raises(BundleError, match="has over 100000 bytes"):
        bundles.load(signed)


@pytest.mark.parametrize("kind", ["pipe", "folder", "lost link"])
def test_what_is_no_file_signs_nothing(signed: Path, kind: str) -> None:
    file = signed / SIGNATURE
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)  # opening it would wait for ever
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(signed / "nowhere")
    with pytest.raises(BundleError, match="is not signed"):
        bundles.load(signed)


def test_several_may_sign_and_any_of_them_may_be_asked_for(
    signed: Path, keys: Keys, tmp_path: Path, pair: Pair
) -> None:
    second = keys("second")
    sign(signed, second)
    sign(signed, second)  # again: no second line
    assert len((signed / SIGNATURE).read_text().splitlines()) == 2
    for public in (pair.public, second.public):
        assert bundles.load(signed, key_files.read_public(public))
    third = keys("third")
    with pytest.raises(BundleError, match="is signed by"):
        bundles.load(signed, key_files.read_public(third.public))
    both = tmp_path / "both.pub"
    both.write_bytes(third.public.read_bytes() + pair.public.read_bytes())
    assert bundles.load(signed, key_files.read_public(both))


def test_who_signs_garbage_away_is_signed(signed: Path, pair: Pair) -> None:
    (signed / SIGNATURE).write_bytes(b"garbage")
    sign(signed, pair)
    assert bundles.load(signed)


def test_what_is_saved_anew_must_be_signed_anew(signed: Path, pair: Pair) -> None:
    manifest = bundles.load(signed).manifest
    assert (
        bundles.save(signed, manifest).manifest == manifest
    )  # who exports need not have signed yet
    with pytest.raises(BundleError, match="is not signed"):
        bundles.load(signed)


def test_a_missing_key_lets_nothing_pass(
    signed: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.public.unlink()
    with pytest.raises(UsageError, match="can't be read"):
        bundles.load(signed)


def test_a_signature_of_the_bare_hash_is_none(make: Make, pair: Pair) -> None:
    """A key that also signs other things is not turned against us."""
    import hashlib

    folder = make("bare")
    key = key_files.read_private(pair.private)
    content = (folder / MANIFEST).read_bytes()
    for message in (content, hashlib.sha256(content).digest()):
        signature = signatures.Signature(key_files.public_of(key).id, key.sign(message))
        signatures.add(folder, signature)
        with pytest.raises(BundleAltered, match="is no signature"):
            bundles.load(folder)
