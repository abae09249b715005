"""Compression: told by the ending, undone while reading, done a window at a time.

Every window is compressed by itself (a gzip member, a zstd frame). All readers take a sequence of
them as one file, and what was written before a kill stays as it is.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import PurePosixPath
from typing import IO, cast

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.packages import arrow

ENDINGS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "txt",
    ".parquet": "parquet",
    ".pq": "parquet",
}
BEGINNINGS = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"PAR1": "parquet",
}
"""What files begin with that are no text."""
DAMAGED = (EOFError, zlib.error, lzma.LZMAError)
ERRORS = (OSError, *DAMAGED)


def told_by(name: str) -> tuple[str | None, str | None]:
    """(format, codec) that a file name ends in; None where it does not say."""
    path = PurePosixPath(name)
    codec = ENDINGS.get(path.suffix.lower())
    if codec:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix.lower()), codec


def refuse_misnamed(name: str, beginning: bytes, format: str, codec: str | None) -> None:
    """A file that is something else than its name says: one line, not a screen of its bytes."""
    told = next((kind for mark, kind in BEGINNINGS.items() if beginning.startswith(mark)), None)
    expected = "parquet" if format == "parquet" else codec
    if told == expected or not beginning or (told is None and expected == "parquet"):
        return  # of what only claims to be Parquet its own reader says more
    path = PurePosixPath(name)
    ending = {codec: ending for ending, codec in ENDINGS.items()} | {"parquet": ".parquet"}
    if told == "zip":
        remedy = "unpack it"
    elif told is None:
        remedy = f"rename it without {path.suffix}"
    else:
        base = path.name if expected is None and told != "parquet" else path.stem
        remedy = f"rename it, to {base}{ending[told]}"
    called = f"is not {expected}" if expected else f"is called {format}"
    raise DataError(name, f"{called}, and holds {told or 'uncompressed text'}", remedy)


def decompressed(stream: IO[bytes], codec: str | None) -> IO[bytes]:
    if codec is None:
        return stream
    if codec == "gzip":
        return cast(IO[bytes], gzip.GzipFile(fileobj=stream))
    if codec == "bz2":
        return cast(IO[bytes], bz2.BZ2File(stream))
    if codec == "xz":
        return cast(IO[bytes], lzma.LZMAFile(stream))
    # Arrow's stream has no readline.
    return io.BufferedReader(arrow("zstd").CompressedInputStream(stream, "zstd"), 1 << 20)


def compress(data: bytes, codec: str | None) -> bytes:
    """The same bytes at all times: no clock, no file name inside."""
    if codec is None:
        return data
    if codec == "gzip":
        return gzip.compress(data, compresslevel=6, mtime=0)
    if codec == "bz2":
        return bz2.compress(data)
    if codec == "xz":
        return lzma.compress(data)
    if codec == "zstd":
        return cast(bytes, arrow("zstd").Codec("zstd").compress(data, asbytes=True))
    raise UsageError(codec, f"is no compression; known: {', '.join(ENDINGS.values())}")


def damaged(name: str, error: BaseException) -> DataError:
    return DataError(
        name, f"is damaged or cut off ({error})", "restore it; what was scored so far is kept"
    )


def is_damage(error: BaseException, codec: str | None) -> bool:
    """Whether an error while reading means broken compression, not a broken disk."""
    if codec is None:
        return False
    return isinstance(error, DAMAGED) or (isinstance(error, OSError) and error.errno is None)
