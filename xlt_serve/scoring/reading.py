"""The windows of an order's input, from any place on."""

from __future__ import annotations

from collections.abc import Iterator

from xlt_serve.errors import UsageError
from xlt_serve.files.formats import read
from xlt_serve.files.places import Source
from xlt_serve.files.window import BEGIN, Window
from xlt_serve.scoring.journal import Place
from xlt_serve.scoring.local import ScoredWindow
from xlt_serve.scoring.order import Order, Unit


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
                yield ScoredWindow(number, index, window)


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
