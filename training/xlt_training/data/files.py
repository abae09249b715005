"""Rows of a file: TSV, CSV, JSONL or Parquet, told apart by the ending."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from xlt_serve.errors import DataError


def read_rows(path: Path) -> list[dict[str, str]]:
    """Every row as texts by column name. The first line of TSV and CSV names the columns."""
    readers = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(path, f"has no known ending; known: {', '.join(readers)}")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(path, "is not there", "check the path of the data folder") from None
    except IsADirectoryError:
        raise DataError(path, "is a folder", "give a file") from None
    rows = readers[path.suffix](path, content)
    for number, row in enumerate(rows, 1):
        if rows[0].keys() - row.keys():
            missing = ", ".join(sorted(rows[0].keys() - row.keys()))
            raise DataError(
                f"{path} row {number}", f"has no {missing}", "give every row all columns"
            )
    return rows


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise DataError(
            path, f"is not valid UTF-8 in line {line} (byte {error.start})", "save it as UTF-8"
        ) from None


def _columns(path: Path, names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise DataError(path, f"names a column twice: {', '.join(names)}", "rename one")
    return names


def _tsv(path: Path, content: bytes) -> list[dict[str, str]]:
    # The project's TSV has no quoting: a quotation mark is a character of the text.
    lines = _text(path, content).split("\n")
    columns = _columns(path, lines[0].rstrip("\r").split("\t"))
    out = []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        values = line.rstrip("\r").split("\t")
        if len(values) != len(columns):
            raise DataError(
                f"{path} line {number}",
                f"has {len(values)} fields, the header has {len(columns)}",
                "take tabs out of the texts, or use CSV with quotes",
            )
        out.append(dict(zip(columns, values, strict=True)))
    return out


def _csv(path: Path, content: bytes) -> list[dict[str, str]]:
    csv.field_size_limit(10**9)  # a text may be long; what is too long is said where it is read
    reader = csv.reader(io.StringIO(_text(path, content), newline=""))
    out: list[dict[str, str]] = []
    columns: list[str] | None = None
    try:
        for row in reader:
            if columns is None:
                columns = _columns(path, row)
            elif row:
                if len(row) != len(columns):
                    raise DataError(
                        f"{path} line {reader.line_num}",
                        f"does not have the {len(columns)} fields of the header",
                        "quote texts that contain commas",
                    )
                out.append(dict(zip(columns, row, strict=True)))
    except csv.Error as error:
        raise DataError(f"{path} line {reader.line_num}", f"is not CSV ({error})") from None
    return out


def _jsonl(path: Path, content: bytes) -> list[dict[str, str]]:
    out = []
    for number, line in enumerate(_text(path, content).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number}", f"is not JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path} line {number}", "is not a JSON object")
        out.append(_strings(row))
    return out


def _parquet(path: Path, content: bytes) -> list[dict[str, str]]:
    from pyarrow import ArrowInvalid, BufferReader, parquet

    try:
        table = parquet.read_table(BufferReader(content))
    except ArrowInvalid as error:
        raise DataError(path, f"is not Parquet ({error})") from None
    return [_strings(row) for row in table.to_pylist()]


def _strings(row: dict[str, Any]) -> dict[str, str]:
    """Values as texts; a null is an empty one."""
    return {key: "" if value is None else str(value) for key, value in row.items()}
