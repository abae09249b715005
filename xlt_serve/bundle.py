"""The bundle: a folder that holds all that serving needs, described by ``bundle.json``.

It is the only thing that training and serving share. Every file is named with its sha256 and
checked on load; nothing in it is a pickle.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xlt_serve import manifest as rules
from xlt_serve.errors import BundleAltered, BundleError, BundleNotFound, BundleTooNew
from xlt_serve.manifest import Broken
from xlt_serve.signing import key_files, signatures
from xlt_serve.signing.key_files import ANYBODY, Signers
from xlt_serve.signing.signatures import SIGNATURE

FORMAT = 1
MANIFEST = "bundle.json"
DEFAULT = "topics"
INSTALL = "pip install xlt-serve-models"


def _models() -> Path:
    """Beside this file in a clone and in a bento, else in the package that ``INSTALL`` brings."""
    beside = Path(__file__).parent / "models"
    found = None if beside.is_dir() else importlib.util.find_spec("xlt_serve_models")
    return Path(found.origin).parent if found and found.origin else beside


MODELS = _models()


@dataclass(frozen=True, slots=True)
class Graph:
    """One ONNX file: what it reads, what it gives, and in which precision its weights are."""

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    precision: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``scores``: per language, what was measured at export. ``calibration``: per mode. ``noise``:
    where the perturbed graph adds it (``at``), and of which ``kind`` and ``scale`` training had it;
    ``words``: how training drew synonyms. ``synonyms``: language → file of its table."""

    name: str
    version: str
    task: str
    pair: bool
    labels: tuple[str, ...]
    source_language: str
    languages: tuple[str, ...]
    method: dict[str, Any]
    graphs: dict[str, Graph]
    tokenizer: str
    max_length: int
    pad_id: int
    noise: dict[str, Any] = field(default_factory=dict)
    synonyms: dict[str, str] = field(default_factory=dict)
    calibration: dict[str, dict[str, float]] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)
    notes: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def temperature(self, mode: str) -> float:
        return float(self.calibration.get(mode, {}).get("temperature", 1.0))

    @property
    def trimmed_to(self) -> tuple[str, ...] | None:
        """The languages that the vocabulary was kept for; none where the bundle did not note them. None:
        it was not trimmed."""
        trimmed = self.checks.get("trimmed")
        return None if trimmed is None else tuple(trimmed.get("languages", ()))

    def abstain_below(self, mode: str) -> float | None:
        """The confidence under which this bundle gives no label, if it was exported with one."""
        return self.calibration.get(mode, {}).get("abstain_below")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle on disk."""

    path: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        return self.path / name


def shipped() -> list[str]:
    """Names of the bundles that ship, the default one first; none where they are not installed."""
    names = (folder.parent.name for folder in MODELS.glob(f"*/{MANIFEST}"))
    return sorted(names, key=lambda name: (name != DEFAULT, name))


def shipped_with(graph: str) -> list[str]:
    """Names of the shipped bundles that have a graph."""
    return [name for name in shipped() if graph in read_manifest(MODELS / name / MANIFEST).graphs]


def find(name_or_path: str | Path | None = None) -> Path:
    """The folder of a shipped name, else of a path; never a download."""
    if name_or_path is None:
        return find(DEFAULT)
    if str(name_or_path) in shipped():
        return MODELS / str(name_or_path)
    path = Path(name_or_path)
    try:
        found = (path / MANIFEST).is_file()
    except OSError:  # a name too long for the file system, say
        found = False
    if not found:
        names = ", ".join(shipped())
        make = "make one with `xlt export CHECKPOINT --out FOLDER`"
        raise BundleNotFound(
            name_or_path,
            f"is neither a shipped bundle ({names or 'none is installed'}) "
            f"nor a folder with a {MANIFEST}",
            make if names else f"`{INSTALL}` brings those that ship, or {make}",
        )
    return path


def load(name_or_path: str | Path | None = None, signers: Signers | None = None) -> Bundle:
    """Find, read and verify: every file that the manifest names is there with its hash. ``signers``:
    who must have signed the manifest, by default as ``XLT_REQUIRE_SIGNATURE`` says."""
    bundle = described(name_or_path, signers)
    for name, expected in bundle.manifest.files.items():
        file = bundle.file(name)
        try:
            found = digest(file)
        except OSError as error:
            raise _unreadable(file, error) from None
        if found != expected:
            raise BundleAltered(
                file,
                f"was altered: its sha256 is not the one in {MANIFEST}",
                "export the bundle again, or restore the file",
            )
    return bundle


def described(name_or_path: str | Path | None = None, signers: Signers | None = None) -> Bundle:
    """Find and read: every file that is named is there, but its content was not looked at."""
    path = find(name_or_path)
    manifest = read_manifest(path / MANIFEST, key_files.required() if signers is None else signers)
    home = path.resolve()
    for name in (MANIFEST, *manifest.files):
        file = path / name
        if not file.is_file():
            raise BundleAltered(file, f"is missing, {MANIFEST} names it", "export the bundle again")
        if not file.resolve().is_relative_to(home):
            raise BundleError(
                file, "is a link to a file outside the bundle", "put the file itself there"
            )
    graphs = (graph.file for graph in manifest.graphs.values())
    for needed in (manifest.tokenizer, *graphs, *manifest.synonyms.values()):
        if needed not in manifest.files:
            raise BundleAltered(
                path / needed, f"has no sha256 in {MANIFEST}", "export the bundle again"
            )
    return Bundle(path, manifest)


def read_manifest(file: Path, signers: Signers = ANYBODY) -> Manifest:
    """The bytes whose signature is checked are those that are parsed."""
    try:
        content = rules.read(file)
    except OSError as error:
        raise _unreadable(file, error) from None
    except Broken as broken:
        raise _refused(file, broken) from None
    signatures.check(file.parent, content, signers)
    return parsed(content, file)


def parsed(content: bytes, file: Path) -> Manifest:
    """``file``: what errors name."""
    try:
        raw = rules.parse(content)
    except Broken as broken:
        raise _refused(file, broken) from None
    except ValueError as error:
        raise BundleError(file, f"is not JSON ({error})", "export the bundle again") from None
    if not isinstance(raw, dict) or type(raw.get("format")) is not int or raw["format"] < 1:
        raise BundleError(file, "has no format number", "export the bundle again")
    if raw["format"] > FORMAT:
        raise BundleTooNew(
            file,
            f"has format {raw['format']}, this xlt-serve knows formats up to {FORMAT}",
            "upgrade xlt-serve",
        )
    try:
        rules.check(raw)
    except Broken as broken:
        raise _refused(file, broken) from None
    if content_version(raw) != raw["version"]:
        raise BundleAltered(
            file,
            "was altered: its version is not that of its content",
            "export the bundle again, or restore the file",
        )
    return _manifest(raw)


def _unreadable(file: Path, error: OSError) -> BundleError:
    return BundleError(file, f"can't be read ({error.strerror})", "mend its permissions")


def _refused(file: Path, broken: Broken) -> BundleError:
    return BundleError(
        f"{file}: {broken.where}={broken.value}", broken.rule, "export the bundle again"
    )


def _manifest(raw: dict[str, Any]) -> Manifest:
    """A manifest from JSON that keeps the rules."""
    graphs = {
        name: Graph(
            file=graph["file"],
            inputs=tuple(graph["inputs"]),
            outputs=tuple(graph["outputs"]),
            precision=graph["precision"],
        )
        for name, graph in raw["graphs"].items()
    }
    rest = {"graphs": graphs, "labels": tuple(raw["labels"]), "languages": tuple(raw["languages"])}
    return Manifest(**(raw | rest))


def save(path: Path, manifest: Manifest) -> Bundle:
    """Hash every file in ``path`` and write the manifest; the version is made of the hashes."""
    files = {
        str(file.relative_to(path)): digest(file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and not file.name.startswith((MANIFEST, SIGNATURE))
    }
    raw = asdict(manifest) | {"files": files}
    try:
        rules.check(raw)
    except Broken as broken:
        raise _refused(path / MANIFEST, broken) from None
    raw["version"] = content_version(raw)
    text = json.dumps(raw, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path / MANIFEST, f"{text}\n".encode())
    (path / SIGNATURE).unlink(missing_ok=True)  # that of another manifest
    return load(path, ANYBODY)


def write_whole(file: Path, data: bytes) -> None:
    """All or nothing under the final name, also where the power goes."""
    half = file.with_name(file.name + ".half")
    with half.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    half.replace(file)


def content_version(raw: dict[str, Any]) -> str:
    """Twelve hex digits over everything but the version: another answer means another version."""
    rest = {key: value for key, value in raw.items() if key != "version"}
    text = json.dumps(rest, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
