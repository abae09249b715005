"""Where rows come from and go to: files, globs, folders, object stores, pipes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast
from urllib.parse import unquote

from xlt_serve.bundle import digest
from xlt_serve.errors import DataError, DependencyError, UsageError
from xlt_serve.files import codecs
from xlt_serve.files.packages import needed

PIPE = "-"
OUTPUTS = ("csv", "tsv", "jsonl", "parquet")


@dataclass(frozen=True, slots=True)
class Source:
    """One file: ``name`` is its path below the folder that was given, ``keys`` what its folders say
    of all its rows (``lang=de/part.csv``). ``encoding`` and, of CSV, ``delimiter``: see ``dialect``."""

    url: str
    name: str
    format: str
    codec: str | None = None
    encoding: str = "utf-8"
    delimiter: str = ","
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def is_pipe(self) -> bool:
        return self.url == PIPE


def find(place: str, format: str | None) -> tuple[list[Source], bool]:
    """The files of ``place`` in the order of their names, and whether it may stand for several."""
    if place == PIPE:
        if format == "parquet":
            raise UsageError("-", "Parquet can't be read from a pipe", "give a file")
        return [Source(PIPE, "stdin", format or "jsonl")], False
    found, several = _remote(place) if "://" in place else _local(place)
    if any(".." in name.split("/") for _, name in found):
        raise DataError(
            place, "goes back (..) after a wildcard", "name the folder: outputs are called alike"
        )
    sources = []
    for url, name in found:
        told, codec = codecs.told_by(name)
        if format is None and told is None:
            if several:
                continue  # a README beside the data
            raise UsageError(
                url,
                f"has no known ending ({', '.join(codecs.FORMATS)}, also with .gz .bz2 .xz .zst)",
                "say what it is with --in-format",
            )
        sources.append(Source(url, name, format or cast(str, told), codec, keys=_keys(name)))
    if not sources:
        raise DataError(
            place, "has no file to score", f"known endings: {', '.join(codecs.FORMATS)}"
        )
    kinds = sorted({source.format for source in sources})
    if len(kinds) > 1:
        raise DataError(
            place, f"has files of several formats: {', '.join(kinds)}", "give a glob of one of them"
        )
    return sorted(sources, key=lambda source: source.name), several


def identity(source: Source) -> dict[str, Any]:
    """What makes a file this file. Local ones are read through; of object stores we have their word
    (size, modification time, tag), since reading them twice may cost money."""
    if source.is_pipe:
        return {"name": source.name}
    if "://" in source.url:
        fs, path = _file_system(source.url)
        with _explained(source.url):
            return {"name": source.name, "size": fs.size(path), "tag": str(fs.ukey(path))}
    with _explained(source.url):
        file = Path(source.url)
        return {"name": source.name, "size": file.stat().st_size, "sha256": digest(file)}


def stamp(source: Source) -> tuple[int, int] | None:
    """Changes when a local file is written to; cheap enough to ask before and after reading."""
    if source.is_pipe or "://" in source.url:
        return None
    with _explained(source.url):
        found = Path(source.url).stat()
    return found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def opened(source: Source) -> Iterator[IO[bytes]]:
    """Its bytes as they are stored."""
    if source.is_pipe:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        with _explained(source.url):
            if "://" in source.url:
                fs, path = _file_system(source.url)
                stream = stack.enter_context(fs.open(path, "rb"))
            else:
                stream = stack.enter_context(Path(source.url).open("rb"))
        yield cast(IO[bytes], stream)


def refuse_misnamed(source: Source) -> None:
    """A file that holds something else than its name says."""
    if not source.is_pipe:
        with opened(source) as stream:
            codecs.refuse_misnamed(source.url, stream.read(8), source.format, source.codec)


def size_of(source: Source) -> int:
    """Bytes as stored; 0 where nobody knows."""
    if source.is_pipe:
        return 0
    with _explained(source.url):
        if "://" in source.url:
            fs, path = _file_system(source.url)
            return int(fs.size(path) or 0)
        return Path(source.url).stat().st_size


def is_remote(place: str) -> bool:
    return "://" in place


def exists(place: str) -> bool:
    if is_remote(place):
        fs, path = _file_system(place)
        return bool(fs.exists(path))
    return os.path.lexists(place)


def kind(place: str) -> str | None:
    """ "file" or "folder"; None where nothing is. A link that leads nowhere is a file."""
    if is_remote(place):
        fs, path = _file_system(place)
        if not fs.exists(path):
            return None
        return "folder" if fs.isdir(path) else "file"
    if not exists(place):
        return None
    return "folder" if Path(place).is_dir() else "file"


def is_empty_folder(place: str) -> bool:
    if kind(place) != "folder":
        return False
    if is_remote(place):
        fs, path = _file_system(place)
        return not fs.find(path)
    return not any(Path(place).iterdir())


def canonical(place: str) -> str:
    """The same address for the same file, whatever name or link leads to it."""
    if is_remote(place):
        fs, path = _file_system(place)
        if not getattr(fs, "local_file", False):
            return str(fs.unstrip_protocol(path))
        place = path
    return str(Path(place).resolve())


def upload(file: Path, place: str) -> None:
    """A whole file under its final name: object stores show it when it is complete, others get it
    under another name first."""
    fs, path = _file_system(place)
    with _explained(place):
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        half = path + ".uploading"
        fs.put_file(str(file), half)
        if fs.exists(path):
            fs.rm(path)
        fs.mv(half, path)


def digest_of(place: str) -> str | None:
    """Of a file's bytes; None where there is none to be read."""
    try:
        if not is_remote(place):
            return digest(Path(place))
        fs, path = _file_system(place)
        with fs.open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def read_small(place: str) -> bytes | None:
    """A small file's bytes, or None where it is not there."""
    try:
        if is_remote(place):
            fs, path = _file_system(place)
            return cast(bytes, fs.cat_file(path))
        return Path(place).read_bytes()
    except FileNotFoundError:
        return None


def _local(place: str) -> tuple[list[tuple[str, str]], bool]:
    path = Path(place)
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        return [
            (str(file), name) for file in files if _shown(name := file.relative_to(path).as_posix())
        ], True
    if path.exists():
        return [(str(path), path.name)], False
    if any(character in place for character in "*?["):
        fixed, parts = Path(path.anchor), list(path.parts[1 if path.anchor else 0 :])
        while parts and not any(character in parts[0] for character in "*?["):
            fixed /= parts.pop(0)
        files = [file for file in fixed.glob("/".join(parts)) if file.is_file()]
        if files:
            return [(str(file), file.relative_to(fixed).as_posix()) for file in files], True
        raise DataError(place, "matches no file", "check the pattern (** goes into folders)")
    raise DataError(place, "is not there", "give a file, a folder, a glob, a URL, or - for a pipe")


def _remote(place: str) -> tuple[list[tuple[str, str]], bool]:
    fs, path = _file_system(place)
    scheme = place.split("://", 1)[0]
    with _explained(place):
        if any(character in path for character in "*?["):
            fixed = path[: min(path.find(c) for c in "*?[" if c in path)].rpartition("/")[0]
            files = [file for file in fs.glob(path) if not fs.isdir(file)]
        elif fs.isdir(path):
            fixed, files = path, fs.find(path)
        elif fs.exists(path):
            return [(place, PurePosixPath(path).name)], False
        else:
            raise FileNotFoundError
    found = []
    for file in files:
        name = file.removeprefix(fixed).lstrip("/")
        if _shown(name):
            found.append((f"{scheme}://{file}", name))
    if not found:
        raise DataError(place, "matches no file", "check the address")
    return found, True


def _shown(name: str) -> bool:
    """Not what tools leave beside the data: ``_SUCCESS``, ``.crc``."""
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def _keys(name: str) -> dict[str, str]:
    """Columns in the path, as Hive and Spark write them."""
    parts = [part.partition("=") for part in name.split("/")[:-1] if "=" in part]
    return {key: unquote(value) for key, _, value in parts}


def _file_system(url: str) -> tuple[Any, str]:
    fsspec = needed("fsspec", f"{url.split('://', 1)[0]}:// addresses", "score")
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise DependencyError(url, f"needs a package of its own ({error})", "install it") from None
    except ValueError as error:
        raise UsageError(url, f"is no address that fsspec knows ({error})") from None
    return fs, path


@contextlib.contextmanager
def _explained(place: str) -> Iterator[None]:
    """The operating system's errors in our words, before reading has begun."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(place, "is not there", "was it moved? what was scored is kept") from None
    except IsADirectoryError:
        raise DataError(place, "is a folder", "give a file") from None
    except PermissionError:
        raise DataError(place, "may not be read", "check its permissions") from None
