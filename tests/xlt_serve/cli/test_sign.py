from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle, Manifest
from xlt_serve.cli.main import main
from xlt_serve.signing import key_files
from xlt_serve.signing.signatures import SIGNATURE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(key_files.REQUIRED, raising=False)
    return Path(shutil.copytree(bundles.find("topics"), tmp_path / "mine"))


def test_make_a_key_sign_and_require(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sign", "--new-key", "k.pem"]) == 0
    monkeypatch.setenv(key_files.REQUIRED, "k.pub")
    assert main(["inspect", "mine"]) == 1
    assert "is not signed" in capsys.readouterr().err
    assert main(["sign", "mine", "--key", "k.pem"]) == 0
    assert main(["inspect", "mine"]) == 0
    [key] = key_files.read_public(Path("k.pub")).keys
    assert f"signed by    {key.id} (checked)" in capsys.readouterr().out


def test_a_damaged_bundle_is_not_signed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sign", "--new-key", "k.pem"]) == 0
    with (folder / "tokenizer.json").open("a") as file:
        file.write(" ")
    assert main(["sign", "mine", "--key", "k.pem"]) == 1
    assert "was altered" in capsys.readouterr().err
    assert not (folder / SIGNATURE).exists()


def test_what_is_signed_is_what_was_verified(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sign", "--new-key", "k.pem"]) == 0
    load = bundles.load

    def then_altered(*given: Any) -> Bundle:
        bundle = load(*given)
        _save(folder, replace(bundle.manifest, notes="somebody else's"))
        return bundle

    monkeypatch.setattr(bundles, "load", then_altered)
    assert main(["sign", "mine", "--key", "k.pem"]) == 1
    assert "changes while it is signed" in capsys.readouterr().err
    assert not (folder / SIGNATURE).exists()


def _save(folder: Path, manifest: Manifest) -> None:
    raw = asdict(manifest)
    raw["version"] = bundles.content_version(raw)
    (folder / bundles.MANIFEST).write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "needs a bundle and a key"),
        (["mine"], "needs a bundle and a key"),
        (["--key", "k.pem"], "needs a bundle and a key"),
        (["mine", "--new-key", "k.pem"], "makes keys and signs nothing"),
        (["mine", "--key", "missing.pem"], "missing.pem: can't be read"),
        (["--new-key", "missing/k.pem"], "can't be written"),
    ],
)
def test_a_wrong_call_is_one_line(
    folder: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sign", *arguments]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
