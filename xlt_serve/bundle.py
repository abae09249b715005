"""The bundle: a folder that holds all that serving needs, described by ``bundle.json``.

It is the only thing that training and serving share. Every file is named with its sha256 and
checked on load; nothing in it is a pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from xlt_serve.errors import BundleAltered, BundleError, BundleNotFound, BundleTooNew

FORMAT = 1
MANIFEST = "bundle.json"
MODELS = Path(__file__).parent / "models"
DEFAULT = "topics"


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
    """Names of the bundles that come with the package, the default one first."""
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
    if not (path / MANIFEST).is_file():
        names = ", ".join(shipped()) or "none"
        raise BundleNotFound(
            name_or_path,
            f"is neither a shipped bundle ({names}) nor a folder with a {MANIFEST}",
            "make one with `xlt export CHECKPOINT --out FOLDER`",
        )
    return path


def load(name_or_path: str | Path | None = None) -> Bundle:
    """Find, read and verify: every file that the manifest names is there with its hash."""
    path = find(name_or_path)
    manifest = read_manifest(path / MANIFEST)
    for name, expected in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise BundleAltered(file, f"is missing, {MANIFEST} names it", "export the bundle again")
        if digest(file) != expected:
            raise BundleAltered(
                file,
                f"was altered: its sha256 is not the one in {MANIFEST}",
                "export the bundle again, or restore the file",
            )
    graphs = (graph.file for graph in manifest.graphs.values())
    for needed in (manifest.tokenizer, *graphs, *manifest.synonyms.values()):
        if needed not in manifest.files:
            raise BundleAltered(
                path / needed, f"has no sha256 in {MANIFEST}", "export the bundle again"
            )
    return Bundle(path, manifest)


def read_manifest(file: Path) -> Manifest:
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BundleError(file, f"is not JSON ({error})", "export the bundle again") from None
    if not isinstance(raw, dict) or type(raw.get("format")) is not int or raw["format"] < 1:
        raise BundleError(file, "has no format number", "export the bundle again")
    if raw["format"] > FORMAT:
        raise BundleTooNew(
            file,
            f"has format {raw['format']}, this xlt-serve knows formats up to {FORMAT}",
            "upgrade xlt-serve",
        )
    if content_version(raw) != raw.get("version"):
        raise BundleAltered(
            file,
            "was altered: its version is not that of its content",
            "export the bundle again, or restore the file",
        )
    try:
        return _manifest(raw)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BundleError(file, f"is not complete ({error})", "export the bundle again") from None


def _manifest(raw: dict[str, Any]) -> Manifest:
    """A manifest from its JSON; any error means that it is none."""
    if unknown := sorted(set(raw) - {f.name for f in fields(Manifest)}):
        raise ValueError(f"unknown keys {unknown}")
    graphs = {
        name: Graph(
            file=graph["file"],
            inputs=tuple(graph["inputs"]),
            outputs=tuple(graph["outputs"]),
            precision=graph["precision"],
        )
        for name, graph in raw["graphs"].items()
    }
    for key in ("labels", "languages"):
        if not isinstance(raw[key], list) or not all(isinstance(part, str) for part in raw[key]):
            raise TypeError(f"{key} must be a list of strings")
    for key, kind in (("pad_id", int), ("max_length", int), ("tokenizer", str), ("files", dict)):
        if type(raw[key]) is not kind:
            raise TypeError(f"{key} must be {kind.__name__}")
    rest = {"graphs": graphs, "labels": tuple(raw["labels"]), "languages": tuple(raw["languages"])}
    manifest = Manifest(**(raw | rest))
    if not all(manifest.temperature(mode) > 0 for mode in manifest.calibration):
        raise ValueError("a temperature must be positive")
    named = (manifest.tokenizer, *(g.file for g in graphs.values()), *manifest.synonyms.values())
    for name in (*manifest.files, *named):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} is a file outside the bundle")
    return manifest


def save(path: Path, manifest: Manifest) -> Bundle:
    """Hash every file in ``path`` and write the manifest; the version is made of the hashes."""
    files = {
        str(file.relative_to(path)): digest(file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in (MANIFEST, f"{MANIFEST}.half")
    }
    described = asdict(manifest)
    described["files"] = files
    described["version"] = content_version(described)
    text = json.dumps(described, indent=2, ensure_ascii=False)
    write_whole(path / MANIFEST, f"{text}\n".encode())
    return load(path)


def write_whole(file: Path, data: bytes) -> None:
    """All or nothing under the final name, also where the power goes."""
    half = file.with_name(file.name + ".half")
    with half.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    half.replace(file)


def content_version(described: dict[str, Any]) -> str:
    """Twelve hex digits over everything but the version: another answer means another version."""
    rest = {key: value for key, value in described.items() if key != "version"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:12]


def digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
