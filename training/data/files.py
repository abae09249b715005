"""Rows of a file: TSV, CSV, JSONL or Parquet, told apart by the ending."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from xlt_serve.errors import DataError


def read_rows(path: Path) -> list[dict[str, str]]:
    """Every row as texts by column name. The first line of TSV and CSV names the columns."""
    readers = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(path, f"has no known ending; known: {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    except FileNotFoundError:
        raise DataError(path, "is not there", "check the path of the data folder") from None
    except IsADirectoryError:
        raise DataError(path, "is a folder", "give a file") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise DataError(
            path, f"is not valid UTF-8 in line {line} (byte {error.start})", "save it as UTF-8"
        ) from None


def _tsv(path: Path) -> list[dict[str, str]]:
    # The project's TSV has no quoting: a quotation mark is a character of the text.
    lines = path.read_text(encoding="utf-8").split("\n")
    columns = lines[0].split("\t")
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


def _csv(path: Path) -> list[dict[str, str]]:
    out = []
    with path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        for row in reader:
            if None in row or None in row.values():
                raise DataError(
                    f"{path} line {reader.line_num}",
                    f"does not have the {len(reader.fieldnames or [])} fields of the header",
                    "quote texts that contain commas",
                )
            out.append(dict(row))
    return out


def _jsonl(path: Path) -> list[dict[str, str]]:
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {number}", f"is not JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path} line {number}", "is not a JSON object")
        out.append({key: str(value) for key, value in row.items()})
    return out


def _parquet(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        raise FileNotFoundError(path)
    from pyarrow import ArrowInvalid, parquet

    try:
        table = parquet.read_table(path)
    except ArrowInvalid as error:
        raise DataError(path, f"is not Parquet ({error})") from None
    return [{key: str(value) for key, value in row.items()} for row in table.to_pylist()]
