from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xlt_serve import bundle as bundles
from xlt_serve import manifest as rules
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
        assert file.suffix in {".onnx", ".bin", ".json", ".jinja", ".md"}
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
        (lambda m: m.pop("labels"), "labels=None: is not there: the manifest is not complete"),
        (lambda m: m.pop("format"), "no format number"),
        (lambda m: m.update(surprise=1), "unknown keys"),
        (lambda m: m["files"].update({"../secret": "0" * 64}), "outside the bundle"),
        (lambda m: m.update(tokenizer="/etc/passwd"), "outside the bundle"),
        (lambda m: m["files"].pop("plain.onnx"), "has no sha256"),
        (lambda m: m.update(graphs=[]), "graphs=.*must be an object"),
        (lambda m: m.update(labels="abc"), "labels='abc': must be a list"),
        (lambda m: m.update(labels=["a", 1, "b"]), r"labels\[1\]=1: must be a string"),
        (lambda m: m.update(labels=["a", "b", "a"]), "labels='a': is there twice"),
        (lambda m: m.update(labels=["a", " ", "b"]), r"labels\[1\]=' ': must have 1 to"),
        (lambda m: m.update(labels=[]), "must be 1 to"),
        (lambda m: m.update(labels=["a" * 1001]), "must have 1 to 1000 characters"),
        (lambda m: m.update(labels=["\ud800"]), "lone surrogate"),
        (lambda m: m.update(max_length="128"), "max_length='128': must be a whole number"),
        (lambda m: m.update(max_length=-5), "max_length=-5: must be between 8 and 100000"),
        (lambda m: m.update(max_length=10**9), "must be between 8 and 100000"),
        (lambda m: m.update(max_length=True), "must be a whole number"),
        (lambda m: m.update(pad_id=-1), "pad_id=-1: must be between 0"),
        (lambda m: m.update(pair=1), "pair=1: must be true or false"),
        (lambda m: m.update(name=None), "name=None: must be a string"),
        (lambda m: m.update(notes=["a"]), "notes=.*must be a string"),
        (lambda m: m.update(packages={"torch": 2}), "packages.torch=2: must be a string"),
        (lambda m: m["graphs"]["plain"].update(inputs="ids"), "plain.inputs='ids': must be a list"),
        (lambda m: m["graphs"]["plain"].pop("precision"), "must be an object with file"),
        (lambda m: m["graphs"]["plain"].update(file="plain.ort"), "must end in .onnx"),
        (lambda m: m["files"].update({"config.json": "0"}), "must be a sha256"),
        (lambda m: m["files"].update({"*/a/*": "0" * 64}), "must be a plain file name"),
        (lambda m: m["files"].update({"./config.json": "0" * 64}), "must be a plain file name"),
        (lambda m: m.update(calibration=None), "calibration=None: must be an object"),
        (lambda m: m.update(calibration={"plain": {"temperature": 0}}), "temperature=0: must be"),
        (lambda m: m.update(calibration={"plain": {"temperature": 1e-300}}), "must be between"),
        (lambda m: m.update(calibration={"plain": {"temperature": True}}), "must be a number"),
        (lambda m: m.update(calibration={"plain": {"abstain_below": 1.5}}), "between 0 and 1"),
        (lambda m: m.update(noise={"kind": "gaussian", "scale": -1}), "scale=-1: must be"),
        (lambda m: m.update(scores={"dev": {"en": 10**400}}), "scores.dev.en=.*must be finite"),
        (lambda m: m.update(format=True), "no format number"),
        (lambda m: m.update(checks={"invariance": []}), "checks.invariance=.*must be an object"),
        (
            lambda m: m.update(checks={"invariance": {"perturbed": {"holds": False}}}),
            "perturbed.largest_difference=None: must be a number",
        ),
        (lambda m: m.update(checks={"invariance": {"plain": {}}}), "holds=None: must be true"),
        (
            lambda m: m.update(checks={"training_text": {"output": "logits"}}),
            "checks.training_text.*=None: must be a",
        ),
        (
            lambda m: m.update(
                checks={
                    "training_text": {
                        "output": "logits",
                        "scale": [1.0, 2.0],
                        "centres": [[1.0]],
                        "typical": 1.0,
                    }
                }
            ),
            "centres.*must be 2 to 2",
        ),
        (lambda m: m.update(checks={"zero_shot": []}), "checks.zero_shot=.*must be an object"),
        (lambda m: m.update(checks={"zero_shot": {"scorer": 1}}), "scorer=1: must be one of nli"),
        (lambda m: m.update(checks={"zero_shot": {"template": "no place"}}), "must have one {}"),
        (lambda m: m.update(checks={"zero_shot": {"template": {"de": 3}}}), "must be a string"),
        (lambda m: m.update(noise={"words": None}), "noise.words=None: must be an object"),
        (lambda m: m.update(noise={"words": {"a": 1}}), "noise.words.(language|draws)=None"),
        (
            lambda m: m.update(noise={"words": {"language": "en", "draws": "a"}}),
            "noise.words.draws='a': must be one of groups",
        ),
        (lambda m: m.update(noise={"at": "moon"}), "at='moon': must be one of embeddings, encoder"),
        (lambda m: m.update(noise={"kind": "laplace", "scale": 1}), "kind='laplace': must be one"),
        (lambda m: m.update(noise={"kind": "gaussian"}), "noise.scale=None: must be a number"),
        (lambda m: m.update(noise={"kind": "gaussian", "scale": 1e5}), "must be between 1e-06"),
    ],
)
def test_a_wrong_manifest_is_refused(
    copy: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    edit(copy, change)
    with pytest.raises(BundleError, match=says):
        bundles.load(copy)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("key", ["scores", "checks", "calibration", "noise", "method"])
def test_a_number_that_is_none_is_refused(copy: Path, key: str, word: str) -> None:
    """One NaN score would otherwise answer 500 to every look at the models."""
    edit(copy, lambda m: m.update({key: {"plain": {"x": 4242}}}))
    file = copy / bundles.MANIFEST
    file.write_text(file.read_text().replace("4242", word))
    with pytest.raises(BundleError, match="must be finite; export the bundle again"):
        bundles.load(copy)


def test_a_number_that_is_none_is_not_saved(copy: Path) -> None:
    manifest = replace(bundles.load(copy).manifest, scores={"dev": {"en": float("nan")}})
    with pytest.raises(BundleError, match=r"scores\.dev\.en=nan: must be finite"):
        bundles.save(copy, manifest)
    with pytest.raises(ValueError, match="not JSON compliant"):
        bundles.content_version({"scores": float("inf")})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"format": 1, "format": 1}', "is there twice"),
        (b"[" * 100_000, "depth="),
        (b'{"format": 1, "name": ' + b"[" * 60 + b"]" * 60 + b"}", "deeper than 50 levels"),
        (b'{"format": 1' + b"0" * 5000 + b"}", "is not JSON"),
        (b" " * (rules.LARGEST + 1), "must be at most 16000000 bytes"),
    ],
)
def test_a_manifest_made_to_hurt_is_refused(copy: Path, content: bytes, says: str) -> None:
    (copy / bundles.MANIFEST).write_bytes(content)
    with pytest.raises(BundleError, match=says):
        bundles.load(copy)


@pytest.mark.parametrize("name", ["weights.bin", "bundle.json"])
def test_a_link_out_of_the_folder_is_refused(copy: Path, name: str) -> None:
    outside = copy.parent / f"outside-{name}"
    (copy / name).rename(outside)
    (copy / name).symlink_to(outside)
    with pytest.raises(BundleError, match=f"{name}: is a link to a file outside the bundle"):
        bundles.load(copy)


def test_a_link_within_the_folder_is_followed(copy: Path) -> None:
    (copy / "weights.bin").rename(copy / "stored")
    (copy / "weights.bin").symlink_to("stored")
    assert bundles.load(copy.rename(copy.with_name("moved")))


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "\ud800"])
def test_a_name_that_no_folder_can_have_is_not_found(name: str) -> None:
    with pytest.raises(BundleNotFound):
        bundles.load(name)


def test_shipped_bundles_keep_the_rules() -> None:
    for name in bundles.shipped():
        assert bundles.load(name).manifest.labels


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
