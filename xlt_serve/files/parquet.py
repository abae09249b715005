"""Parquet, read by rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xlt_serve.errors import DataError, first_line
from xlt_serve.files import weights
from xlt_serve.files.packages import arrow, arrow_parquet
from xlt_serve.files.places import Source, opened
from xlt_serve.files.window import BEGIN, MOST_BYTES, MOST_ROWS, Position, Window

PIECE = 512
"""Rows that are decoded at a time, at most."""
BUFFER = 1 << 20
"""Bytes of a column that are read ahead: else a row group's column is held whole."""


def schema(source: Source) -> Any:
    with opened(source) as stream:
        return _file(source, stream).schema_arrow


def windows(
    source: Source,
    start: Position = BEGIN,
    most_rows: int = MOST_ROWS,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Window]:
    """Tables from row ``start`` on, cut where their rows say, whatever the file's row groups are."""
    pa = arrow("Parquet")
    with opened(source) as stream:
        file = _file(source, stream)
        total = file.metadata.num_rows
        held: list[Any] = []
        rows = size = 0
        done = start.offset
        for batch in _batches(source, file, start.offset):
            while batch.num_rows:
                take, weight = _room(batch, most_rows - rows, most_bytes - size)
                held.append(batch.slice(0, take))
                batch = batch.slice(take)
                rows, size = rows + take, size + weight
                if rows >= most_rows or size >= most_bytes:
                    done += rows
                    yield _window(pa.Table.from_batches(held), done, total, size)
                    held, rows, size = [], 0, 0
        if held:
            yield _window(pa.Table.from_batches(held), done + rows, total, size)


def _batches(source: Source, file: Any, skip: int) -> Iterator[Any]:
    """Record batches after ``skip`` rows; row groups before that are not read."""
    groups: list[int] = []
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if not groups and skip >= rows:
            skip -= rows
        else:
            groups.append(number)
    if not groups:
        return
    try:
        for batch in file.iter_batches(batch_size=_piece(file), row_groups=groups):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield batch.slice(skip)
            skip = 0
    except (OSError, arrow("Parquet").ArrowException) as error:
        raise DataError(
            source.url, f"is damaged ({first_line(error)})", "restore it; what was scored is kept"
        ) from None


def _piece(file: Any) -> int:
    """Rows that are decoded at a time: fewer where they are large."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
    return max(1, min(PIECE, MOST_BYTES // max(1, largest)))


def _room(batch: Any, rows: int, size: int) -> tuple[int, int]:
    """How many rows of a batch still fit in, at least one, and what they weigh."""
    sums = weights.of_batch(batch.slice(0, rows)).cumsum()
    take = min(len(sums), int((sums < size).sum()) + 1)
    return take, int(sums[take - 1])


def _window(table: Any, done: int, total: int, size: int) -> Window:
    return Window(
        table.to_pylist(), Position(done, done), {}, table, "", done / total if total else 1.0, size
    )


def _file(source: Source, stream: Any) -> Any:
    pa, pq = arrow("Parquet"), arrow_parquet()
    try:
        return pq.ParquetFile(stream, pre_buffer=False, buffer_size=BUFFER)
    except pa.ArrowException as error:
        raise DataError(source.url, f"is not Parquet ({first_line(error)})") from None
