"""The windows of an order's input, from any place on."""

from __future__ import annotations

from collections.abc import Iterator

from xlt_serve.errors import UsageError
from xlt_serve.scoring import parquet
from xlt_serve.scoring import text_files as text
from xlt_serve.scoring.journal import Place
from xlt_serve.scoring.local import ScoredWindow
from xlt_serve.scoring.order import Order, Unit
from xlt_serve.scoring.places import Source
from xlt_serve.scoring.window import BEGIN, Position, Window


def read(source: Source, start: Position, rows: int) -> Iterator[Window]:
    reader = parquet.windows if source.format == "parquet" else text.windows
    return reader(source, start, rows)


def pieces(order: Order, units: tuple[Unit, ...], place: Place) -> Iterator[ScoredWindow]:
    """All windows from a place on."""
    for number, unit in enumerate(units):
        if number < place.unit:
            continue
        for index, source in enumerate(unit.sources):
            here = number == place.unit
            if here and index < place.source:
                continue
            start = place.position if here and index == place.source else BEGIN
            if source.is_pipe and start != BEGIN:
                windows = _reread(source, place, order.window)
            else:
                windows = read(source, start, order.window)
            for window in windows:
                yield ScoredWindow(number, index, window, [])


def names(source: Source) -> list[str]:
    """The columns of a file; of JSON lines those in its first rows; of a pipe nobody knows yet."""
    if source.is_pipe:
        return [text.TEXT] if source.format == "txt" else []
    if source.format == "parquet":
        return list(parquet.schema(source).names)
    if source.format == "jsonl":
        first = next(text.windows(source), None)
        return list(dict.fromkeys(key for row in first.rows for key in row)) if first else []
    return text.columns(source)


def _reread(source: Source, place: Place, rows: int) -> Iterator[Window]:
    """A pipe is read from its beginning again, and must give what it gave."""
    windows = read(source, BEGIN, rows)
    for window in windows:
        if window.end.offset == place.position.offset and window.digest == place.digest:
            yield from windows
            return
        if window.end.offset >= place.position.offset:
            break
    raise UsageError(
        "-", "does not give the same rows again", "give the same input, or --overwrite"
    )
