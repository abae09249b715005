from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xlt_serve import bundle as bundles
from xlt_serve.errors import BundleAltered, BundleError, BundleNotFound, BundleTooNew


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], seal: bool = True) -> None:
    """Change a manifest; sealed, its version is made to fit again."""
    file = folder / bundles.MANIFEST
    manifest = json.loads(file.read_text())
    change(manifest)
    if seal:
        manifest["version"] = bundles.content_version(manifest)
    file.write_text(json.dumps(manifest))


def test_what_is_saved_is_loaded(bundle: Path) -> None:
    manifest = bundles.load(bundle).manifest
    assert manifest.labels == ("food", "sports", "weather")
    assert set(manifest.files) >= {"plain.onnx", "weights.bin", "tokenizer.json", "config.json"}
    assert manifest.graphs["plain"].precision == "fp32"
    again = json.loads((bundle / bundles.MANIFEST).read_text())
    assert bundles.content_version(again) == manifest.version


def test_nothing_in_it_is_a_pickle(bundle: Path) -> None:
    for file in bundle.rglob("*"):
        assert file.suffix in {".onnx", ".bin", ".json", ".jinja"}
        assert file.read_bytes()[:2] not in (b"PK", b"\x80\x04", b"\x80\x02")


@pytest.mark.parametrize("name", ["plain.onnx", "weights.bin", "tokenizer.json"])
def test_an_altered_file_is_refused(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(bytes(content))
    with pytest.raises(BundleAltered, match=f"{name}: was altered.*export the bundle again"):
        bundles.load(copy)


def test_a_missing_file_is_refused(copy: Path) -> None:
    (copy / "weights.bin").unlink()
    with pytest.raises(BundleAltered, match="is missing"):
        bundles.load(copy)


def test_a_newer_format_is_refused(copy: Path) -> None:
    edit(copy, lambda m: m.update(format=bundles.FORMAT + 1))
    with pytest.raises(BundleTooNew, match=r"has format 2.*up to 1; upgrade xlt-serve"):
        bundles.load(copy)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.pop("labels"), "is not complete"),
        (lambda m: m.pop("format"), "no format number"),
        (lambda m: m.update(surprise=1), "unknown keys"),
        (lambda m: m["files"].update({"../secret": "0"}), "outside the bundle"),
        (lambda m: m.update(tokenizer="/etc/passwd"), "outside the bundle"),
        (lambda m: m["files"].pop("plain.onnx"), "has no sha256"),
        (lambda m: m.update(graphs=[]), "is not complete"),
        (lambda m: m.update(labels="abc"), "labels must be a list of strings"),
        (lambda m: m.update(max_length="128"), "max_length must be int"),
        (lambda m: m.update(calibration=None), "is not complete"),
        (lambda m: m.update(calibration={"plain": {"temperature": 0}}), "must be positive"),
        (lambda m: m.update(format=True), "no format number"),
    ],
)
def test_a_wrong_manifest_is_refused(
    copy: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    edit(copy, change)
    with pytest.raises(BundleError, match=says):
        bundles.load(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["labels"].reverse(),
        lambda m: m.update(max_length=4096),
        lambda m: m["calibration"]["plain"].update(temperature=9.0),
        lambda m: m["files"].pop("weights.bin"),
    ],
)
def test_an_altered_manifest_is_refused(
    copy: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    edit(copy, change, seal=False)
    with pytest.raises(BundleAltered, match="its version is not that of its content"):
        bundles.load(copy)


@pytest.mark.parametrize("content", [b"not json", b"\xff\xfe", b"[]"])
def test_a_manifest_that_is_no_manifest_is_refused(copy: Path, content: bytes) -> None:
    (copy / bundles.MANIFEST).write_bytes(content)
    with pytest.raises(BundleError):
        bundles.load(copy)


def test_a_name_that_is_nothing_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(BundleNotFound, match="neither a shipped bundle"):
        bundles.load(tmp_path / "nothing")
