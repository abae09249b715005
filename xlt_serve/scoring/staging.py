"""Parquet that is written: staged as Arrow streams, made into a file at the end.

A Parquet file has its table of contents at its end, so it can't be gone on with after a kill. What
is staged while scoring is an Arrow stream for each window, which can.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlt_serve.files.packages import arrow, arrow_ipc, arrow_parquet

GROUP_ROWS = 65_536
GROUP_BYTES = 64 << 20


def stage(table: Any) -> bytes:
    """A table as one Arrow stream with its end."""
    sink = io.BytesIO()
    with arrow_ipc().new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def staged(file: Path) -> Iterator[Any]:
    """The tables that were staged one after the other."""
    size = file.stat().st_size
    with arrow("Parquet").OSFile(str(file)) as stream:
        while stream.tell() < size:
            with arrow_ipc().open_stream(stream) as reader:
                yield reader.read_all()


def finish(stage_file: Path, out: Path, schema: Any) -> None:
    """The Parquet file of what was staged, in row groups of a size that its readers like."""
    pa, pq = arrow("Parquet"), arrow_parquet()
    with pq.ParquetWriter(str(out), schema, compression="zstd") as writer:
        held: list[Any] = []
        rows = size = 0
        for table in staged(stage_file):
            held.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
            if rows >= GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(pa.concat_tables(held), row_group_size=rows)
                held, rows, size = [], 0, 0
        if held:
            writer.write_table(pa.concat_tables(held), row_group_size=rows)
