"""Any file of rows: its windows and its columns."""

from __future__ import annotations

from collections.abc import Iterator

from xlt_serve.files import parquet
from xlt_serve.files import text_files as text
from xlt_serve.files.places import Source
from xlt_serve.files.window import BEGIN, MOST_ROWS, Position, Window


def read(source: Source, start: Position = BEGIN, rows: int = MOST_ROWS) -> Iterator[Window]:
    reader = parquet.windows if source.format == "parquet" else text.windows
    return reader(source, start, rows)


def columns(source: Source) -> list[str]:
    """The names of a file's columns; of JSON lines those in its first rows; of a pipe nobody knows yet."""
    if source.is_pipe:
        return [text.TEXT] if source.format == "txt" else []
    if source.format == "parquet":
        return list(parquet.schema(source).names)
    if source.format == "jsonl":
        first = next(text.windows(source), None)
        return list(dict.fromkeys(key for row in first.rows for key in row)) if first else []
    return text.columns(source)
