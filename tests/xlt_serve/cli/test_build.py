"""``xlt build`` but for BentoML's part, which ``tests/xlt_serve/deploy`` tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from xlt_serve import bundle as bundles
from xlt_serve.cli.main import main
from xlt_serve.deploy import bento
from xlt_serve.errors import XltError
from xlt_serve.signing import key_files, signatures

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(key_files.REQUIRED, raising=False)
    monkeypatch.setattr(bento, "refuse_without_uv", lambda: None)
    monkeypatch.setattr(bento, "build", lambda folder, name, version: f"{name}:{version}")
    return tmp_path


def names(out: Path) -> list[str]:
    return list(json.loads((out / "build.json").read_text())["bundles"])


def test_bundles_have_the_names_that_serve_gives_them(here: Path, capsys: Captured) -> None:
    place = str(bundles.find("topics"))
    assert main(["build", place]) == 0
    assert names(here / "build" / "xlt-serve") == ["topics"]
    assert main(["build", f"b={place}", "topics-paired", "a=topics", "--out", "out"]) == 0
    assert names(here / "out") == ["b", "topics-paired", "a"]
    said = capsys.readouterr().out
    assert "bento:  xlt-serve:" in said
    assert "docker build -t xlt-serve:" in said


def test_what_bentoml_refuses_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def failing(folder: Path, name: str, version: str) -> str:
        raise XltError(name, "bentoml build failed (for a reason)")

    monkeypatch.setattr(bento, "build", failing)
    assert main(["build", "topics", "--out", "out"]) == 1
    assert "bentoml build failed" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_an_image_that_can_not_be_built_is_told_after_the_bento(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(bento, "BACKENDS", ())
    assert main(["build", "topics", "--out", "out", "--containerize"]) == 1
    said = capsys.readouterr()
    assert "bento:  xlt-serve:" in said.out
    assert "can't be built here" in said.err
    assert "docker build -t xlt-serve:" in said.err
    assert (here / "out" / "Dockerfile").exists()


def test_an_unsigned_bundle_is_not_shipped_where_signatures_are_required(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    key_files.write_new(here / "k.pem")
    assert main(["build", "topics", "--require-signature", "k.pub"]) == 1
    assert "is not signed" in capsys.readouterr().err
    monkeypatch.setenv(key_files.REQUIRED, "k.pub")
    assert main(["build", "topics"]) == 1
    assert not (here / "build").exists()


@pytest.mark.parametrize("told", ["option", "variable"])
def test_who_requires_signatures_ships_the_requirement(
    here: Path, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_files.write_new(here / "k.pem")
    place = shutil.copytree(bundles.find("topics"), here / "topics")
    signed = signatures.sign(
        (place / "bundle.json").read_bytes(), key_files.read_private(here / "k.pem")
    )
    signatures.add(place, signed)
    arguments = ["--require-signature", "k.pub"] if told == "option" else []
    if told == "variable":
        monkeypatch.setenv(key_files.REQUIRED, "k.pub")
    assert main(["build", f"mine={place}", "--out", "out", *arguments]) == 0
    assert (here / "out" / "signers.pub").read_text() == (here / "k.pub").read_text()
    for file, line in (
        ("Dockerfile", "ENV XLT_REQUIRE_SIGNATURE=/app/signers.pub\n"),
        ("xlt_bento.py", '"XLT_REQUIRE_SIGNATURE": str(HERE / "signers.pub")'),
    ):
        assert line in (here / "out" / file).read_text()


def test_the_base_s_digest_is_passed_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    given: list[str] = []

    def containerize(folder: Path, image: str, digest: str) -> str:
        given.append(digest)
        return "docker"

    monkeypatch.setattr(bento, "containerize", containerize)
    digest = "sha256:" + "0f" * 32
    assert main(["build", "topics", "--containerize", "--base-digest", digest]) == 0
    assert given == [digest]
    assert f"--build-arg BASE_DIGEST={digest} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "is neither a shipped bundle"),
        (["a b=topics"], "letters, digits, dots"),
        (["topics", "topics"], "is there twice"),
        (["topics", "--image", "x:latest"], "is no name of an image without tag"),
        (["topics", "--base-digest", "sha256:0"], "is no digest of an image"),
        (["topics", "--out", "mine"], "thesis.tex: is not of a build"),
        (["topics", "--require-signature", "missing.pub"], "can't be read"),
    ],
)
def test_a_wrong_call_is_one_line(
    here: Path, arguments: list[str], says: str, capsys: Captured
) -> None:
    (here / "mine").mkdir()
    (here / "mine" / "thesis.tex").write_text("precious")
    assert main(["build", *arguments]) in (1, 2)
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert [path.name for path in here.rglob("*")] == ["mine", "thesis.tex"]
