"""CSV, TSV, JSON lines and plain lines, in windows, from any position on.

A row that can't be read is a row with its reason, never the end of the run: a line that is no JSON,
has too many fields, is not UTF-8, or has a quote that nobody closes.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, TypeAlias

from xlt_serve.errors import DataError
from xlt_serve.files import codecs, dialect
from xlt_serve.files.places import Source, opened, size_of
from xlt_serve.files.window import BEGIN, MOST_BYTES, MOST_ROWS, Position, Row, Window

MOST_LINE = 16 << 20
"""Bytes of a line; what goes beyond is skipped, and the row says so."""
MOST_RECORD = 4 << 20
"""Bytes that a quoted CSV field may run on over lines before its quote counts as never closed."""
TEXT = "text"
"""The column that a plain line stands in."""

Bad: TypeAlias = tuple[str, str]
Read: TypeAlias = tuple[Row, Bad | None, int]
"""A row, what is wrong with it, and its size in bytes."""


class Lines:
    """Lines of a byte stream. ``position`` is that of the next one; lines can be put back.

    Of the last line, ``cut`` says that it was too long and is not whole, and ``skipped`` how many
    bytes of it were left out.
    """

    def __init__(self, stream: IO[bytes], position: Position, hashing: bool = False) -> None:
        self._stream, self._back = stream, deque[tuple[bytes, int]]()
        self.offset, self.line = position.offset, position.line
        self.cut, self.skipped = False, 0
        self._hash = hashlib.blake2b(digest_size=16) if hashing else None

    @property
    def position(self) -> Position:
        return Position(self.offset, self.line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest() if self._hash else ""

    def next(self) -> bytes | None:
        """A line with its end."""
        line, self.skipped = self._back.popleft() if self._back else self._fresh()
        self.cut = _too_long(line)
        if not line:
            return None
        self.offset += len(line) + self.skipped
        self.line += 1
        return line

    def put_back(self, lines: list[bytes]) -> None:
        """The lines that were read last; of these, only the very last may be cut."""
        if not lines:
            return
        *whole, last = lines
        self._back.extendleft(reversed([*((line, 0) for line in whole), (last, self.skipped)]))
        self.offset -= sum(map(len, lines)) + self.skipped
        self.line -= len(lines)

    def _fresh(self) -> tuple[bytes, int]:
        """A line, and how many bytes of it were left out."""
        line, skipped = self._read(), 0
        if _too_long(line):
            while rest := self._read():
                skipped += len(rest)
                if rest.endswith(b"\n"):
                    break
        return line, skipped

    def _read(self) -> bytes:
        line = self._stream.readline(MOST_LINE + 1)
        if self._hash:
            self._hash.update(line)
        return line


def _too_long(line: bytes) -> bool:
    return len(line) > MOST_LINE and not line.endswith(b"\n")


Parse: TypeAlias = Callable[[Lines], Read | None]


def windows(
    source: Source,
    start: Position = BEGIN,
    most_rows: int = MOST_ROWS,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Window]:
    """The rows of a text file from ``start`` on. Windows end where the rows say, not the disk."""
    size = size_of(source)
    with opened(source) as raw:
        stream = _text_of(source, raw)
        try:
            _, lines, parse = _begun(source, stream, start)
            rows: list[Row] = []
            bad: dict[int, Bad] = {}
            held = 0
            while True:
                found = parse(lines)
                if found is not None:
                    row, problem, length = found
                    if problem:
                        bad[len(rows)] = problem
                    rows.append(row)
                    held += length
                if rows and (found is None or len(rows) >= most_rows or held >= most_bytes):
                    share = min(1.0, raw.tell() / size) if size else 0.0
                    yield Window(rows, lines.position, bad, None, lines.digest, share, held)
                    rows, bad, held = [], {}, 0
                if found is None:
                    return
        except codecs.ERRORS as error:
            if codecs.is_damage(error, source.codec):
                raise codecs.damaged(source.url, error) from None
            raise


def columns(source: Source) -> list[str]:
    """The columns that the file names itself: CSV and TSV in their first line, plain text one."""
    if source.format == "txt":
        return [TEXT]
    with opened(source) as raw:
        try:
            return _begun(source, _text_of(source, raw), Position())[0]
        except codecs.ERRORS as error:
            if codecs.is_damage(error, source.codec):
                raise codecs.damaged(source.url, error) from None
            raise


def beginning(source: Source, raw: IO[bytes], size: int = 1 << 10) -> bytes:
    """The first bytes of its text, in UTF-8."""
    return _text_of(source, raw).read(size)


def _text_of(source: Source, raw: IO[bytes]) -> IO[bytes]:
    """Decompressed, in UTF-8."""
    return dialect.as_utf8(codecs.decompressed(raw, source.codec), source.encoding, source.url)


def _begun(source: Source, stream: IO[bytes], start: Position) -> tuple[list[str], Lines, Parse]:
    """The header, and the lines from ``start`` on; what is compressed is read up to there."""
    lines = Lines(stream, Position(), hashing=source.is_pipe)
    names = _names(source, lines) if source.format in ("csv", "tsv") else []
    if start.offset > lines.offset:
        _skip(source, stream, start.offset - lines.offset)
        lines.offset, lines.line = start.offset, start.line
    parsers: dict[str, Parse] = {
        "csv": _csv(names, source.delimiter),
        "tsv": _tsv(names),
        "jsonl": _jsonl,
        "txt": _txt,
    }
    return names, lines, parsers[source.format]


def _skip(source: Source, stream: IO[bytes], size: int) -> None:
    if source.codec is None and source.encoding == "utf-8" and not source.is_pipe:
        stream.seek(size, 1)
        return
    while size > 0:
        block = stream.read(min(size, 1 << 20))
        if not block:
            raise DataError(source.url, "is shorter than it was", "restore it, or use --overwrite")
        size -= len(block)


def _names(source: Source, lines: Lines) -> list[str]:
    row: list[str] = []
    while not any(row):
        line = lines.next()
        if line is None:
            raise DataError(source.url, "is empty: there is no line that names its columns")
        if lines.line == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if source.format == "tsv":
            row = _decoded(line).split("\t")
        else:
            row = _record(lines, line, source.delimiter)[0] or []
    if len(set(row)) < len(row):
        raise DataError(source.url, f"names a column twice: {', '.join(row)}", "rename one")
    return row


def _csv(names: list[str], delimiter: str) -> Parse:
    def parse(lines: Lines) -> Read | None:
        while (line := lines.next()) is not None:
            if lines.cut:
                return _cut(names, line)
            if not line.strip(b"\r\n"):
                continue  # as all readers of CSV do; blanks are a field
            number = lines.line
            values, length = _record(lines, line, delimiter)
            if values is None:
                problem = ("row", f"line {number}: a quote is opened and never closed")
                return _row(names, _decoded(line).split(delimiter)), problem, len(line)
            return _fields(names, values, number, length)
        return None

    return parse


def _record(lines: Lines, first: bytes, delimiter: str) -> tuple[list[str] | None, int]:
    """The fields of the record that begins with this line, or None if its quote is never closed."""
    if b'"' not in first:
        return _decoded(first).split(delimiter), len(first)
    taken = [first]
    size = len(first)
    values = _quoted(taken, delimiter)
    while values is None and size <= MOST_RECORD:
        line = lines.next()
        if line is None:
            break
        taken.append(line)
        size += len(line)
        if lines.cut:  # a row of its own: what is left of it is not the field's end
            break
        if b'"' in line:  # no other line can close a quote
            values = _quoted(taken, delimiter)
    if values is None:
        lines.put_back(taken[1:])
    return values, size


def _quoted(taken: list[bytes], delimiter: str) -> list[str] | None:
    """The one record that these lines are, or None if they end inside a quoted field."""
    end = "\0end"
    # Text with a line break for the csv module's sake; it strips the last one.
    text = [line.decode("utf-8", "surrogateescape") for line in taken]
    if not text[-1].endswith("\n"):
        text[-1] += "\n"
    csv.field_size_limit(1 << 30)
    records = csv.reader([*text, end], delimiter=delimiter)
    try:
        first = next(records)
        return first if next(records, None) == [end] else None
    except csv.Error:  # a carriage return in an unquoted field: not worth losing the row for
        return [part.strip('"') for part in "".join(text).rstrip("\r\n").split(delimiter)]


def _tsv(names: list[str]) -> Parse:
    def parse(lines: Lines) -> Read | None:
        while (line := lines.next()) is not None:
            if lines.cut:
                return _cut(names, line)
            if line.strip(b"\r\n"):
                # No quoting: a quotation mark is a character of the text.
                return _fields(names, _decoded(line).split("\t"), lines.line, len(line))
        return None

    return parse


def _jsonl(lines: Lines) -> Read | None:
    while (line := lines.next()) is not None:
        if lines.cut:
            return _cut([], line)
        if lines.line == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            shown = line[:80].decode("utf-8", "backslashreplace").strip()
            problem = ("row", f"line {lines.line}: is not JSON ({error}): {shown}")
            return {}, problem, len(line)
        if not isinstance(row, dict):
            problem = ("row", f"line {lines.line}: is not a JSON object")
            return {}, problem, len(line)
        return row, None, len(line)
    return None


def _txt(lines: Lines) -> Read | None:
    line = lines.next()
    if line is None:
        return None
    return _cut([TEXT], line) if lines.cut else ({TEXT: _decoded(line)}, None, len(line))


def _fields(names: list[str], values: list[str], number: int, size: int) -> Read:
    problem = None
    if len(values) != len(names):
        problem = ("row", f"line {number}: has {len(values)} fields, the header has {len(names)}")
    return _row(names, values), problem, size


def _row(names: list[str], values: list[str]) -> Row:
    """What there is of a row; the last column keeps what is too much, so that nothing is lost."""
    if len(values) > len(names):
        values = [*values[: len(names) - 1], ",".join(values[len(names) - 1 :])]
    return dict(zip(names, [*values, *[""] * (len(names) - len(values))], strict=True))


def _cut(names: list[str], line: bytes) -> Read:
    problem = ("row", f"a line of more than {MOST_LINE} bytes was left out")
    return dict.fromkeys(names, ""), problem, len(line)


def _decoded(line: bytes) -> str:
    """Text without its line end. Bytes that are no UTF-8 become surrogates: they can be written as
    they were, and their own row has an error."""
    return line.rstrip(b"\n").removesuffix(b"\r").decode("utf-8", "surrogateescape")
