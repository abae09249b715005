"""A bundle is called what it is served as, wherever it is spoken of; and must be signed where asked."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.xlt_serve.serving.conftest import Start, copied
from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.cli import serve
from xlt_serve.errors import BundleError, UsageError
from xlt_serve.signing import key_files, signatures
from xlt_serve.signing.signatures import SIGNATURE

ADMIN = {"X-API-Key": "a" * 16}
TEXT = {"texts": ["Die Mannschaft gewann das Finale."]}


def test_the_name_that_is_served_is_the_name_in_answers_and_errors(
    start: Start, second: Path
) -> None:
    client = start(bundles={"sujets": "topics"}, admin_keys=("a" * 16,))
    assert client.post("/classify", json=TEXT).json()["bundle"]["name"] == "sujets"
    assert client.get("/models").json()["models"][0]["name"] == "sujets"
    for asked in ({"mode": "paired"}, {"mode": "smoothed", "noise": "synonym"}):
        refused = client.post("/classify", json=TEXT | asked)
        assert refused.status_code == 422
        message = refused.json()["error"]["message"]
        assert "sujets" in message
        assert "topics " not in message
    assert 'xlt_predictions_total{bundle="sujets"' in client.get("/metrics").text
    requests = [line for line in client.lines() if line["event"] == "request"]
    assert {line["bundle"] for line in requests if "bundle" in line} == {"sujets"}
    swap = {"name": "sujets", "bundle": str(second)}
    assert client.post("/models", json=swap, headers=ADMIN).status_code == 200
    assert client.post("/classify", json=TEXT).json()["bundle"]["name"] == "sujets"


def test_what_it_was_called_at_export_is_nowhere(start: Start, second: Path) -> None:
    """Not in answers, errors, metrics, nor the log; its version goes with the name."""
    client = start(bundles={"mood": str(second)}, admin_keys=("a" * 16,))
    version = bundles.load(second).manifest.version
    answer = client.post("/classify", json=TEXT | {"bundle": "mood"})
    assert answer.json()["bundle"] == {"name": "mood", "version": version}
    unknown = client.post("/classify", json=TEXT | {"bundle": "topics"})
    assert unknown.status_code == 404
    assert "use one of mood" in unknown.json()["error"]["message"]
    refused = client.post("/zero_shot", json=TEXT | {"labels": ["a"]})
    assert "zero_shot on mood" in refused.json()["error"]["message"]
    last = client.post("/models/unload", json={"name": "mood"}, headers=ADMIN)
    assert "bundle='mood'" in last.json()["error"]["message"]
    assert client.post("/models", json={"name": "mood"}, headers=ADMIN).status_code == 200
    mine = [line for line in client.get("/metrics").text.splitlines() if 'bundle="mood"' in line]
    counted = {line.partition("{")[0] for line in mine}
    assert counted >= {"xlt_predictions_total", "xlt_languages_total", "xlt_swaps_total"}
    named = {line["bundle"] for line in client.lines() if isinstance(line.get("bundle"), str)}
    assert named == {"mood"}
    ready = next(line for line in client.lines() if line["event"] == "ready")
    assert ready["bundles"] == {"mood": version}


def test_a_name_in_python() -> None:
    [mine] = load("topics", name="mine").predict(TEXT["texts"])
    [its_own] = load("topics").predict(TEXT["texts"])
    assert (mine.bundle, its_own.bundle) == ("mine", "topics")
    with pytest.raises(UsageError, match="mode=paired on mine"):
        load("topics", name="mine").predict(TEXT["texts"], mode="paired")


@pytest.fixture
def public(tmp_path: Path) -> Path:
    public, _ = key_files.write_new(tmp_path / "key.pem")
    return public


def sign(folder: Path, private: Path) -> Path:
    manifest = (folder / bundles.MANIFEST).read_bytes()
    signatures.add(folder, signatures.sign(manifest, key_files.read_private(private)))
    return folder


def test_an_unsigned_bundle_is_not_swapped_in(
    start: Start, tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sign(copied(tmp_path / "first", "the first"), tmp_path / "key.pem")
    then = sign(copied(tmp_path / "then", "the second"), tmp_path / "key.pem")
    unsigned = copied(tmp_path / "unsigned", "nobody's")
    monkeypatch.setenv(key_files.REQUIRED, str(public))
    client = start(bundles={"topics": str(first)}, admin_keys=("a" * 16,))
    swap = {"name": "topics", "bundle": str(unsigned)}
    refused = client.post("/models", json=swap, headers=ADMIN)
    assert refused.status_code == 422
    assert "is not signed: it has no bundle.sig" in refused.json()["error"]["message"]
    version = bundles.load(first).manifest.version
    assert client.post("/classify", json=TEXT).json()["bundle"]["version"] == version
    swap = {"name": "topics", "bundle": str(then)}
    swapped = client.post("/models", json=swap, headers=ADMIN)
    assert swapped.status_code == 200, swapped.text
    version = bundles.load(then).manifest.version
    assert client.post("/classify", json=TEXT).json()["bundle"]["version"] == version


def test_a_copy_that_was_sealed_unsigned_takes_the_signature(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xlt_serve.serving import sealed

    folder = copied(tmp_path / "bundle", "signed later")
    before = sealed.seal(folder, tmp_path / "sealed")
    assert not before.file(SIGNATURE).exists()
    sign(folder, tmp_path / "key.pem")
    monkeypatch.setenv(key_files.REQUIRED, str(public))
    after = sealed.seal(folder, tmp_path / "sealed")
    assert after.path == before.path
    assert after.file(SIGNATURE).exists()


def test_serve_tells_its_workers_whose_signature_is_required(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = sign(copied(tmp_path / "bundle", "mine"), tmp_path / "key.pem")
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    serve.add(parser.add_subparsers())
    asked = ["serve", "--require-signature", "key.pub", "--bundle"]
    made = serve.prepared(parser.parse_args([*asked, str(signed)]))
    assert made[key_files.REQUIRED] == str(public)
    with pytest.raises(BundleError, match="is not signed"):
        serve.prepared(parser.parse_args([*asked, "topics"]))
    monkeypatch.setenv(key_files.REQUIRED, "key.pub")  # workers may stand elsewhere
    made = serve.prepared(parser.parse_args(["serve", "--bundle", str(signed)]))
    assert made[key_files.REQUIRED] == str(public)
