"""From an order to its output: resumed where it stood, refused where something changed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files import places
from xlt_serve.files.formats import columns as columns_of
from xlt_serve.files.places import PIPE
from xlt_serve.files.window import BEGIN, Window
from xlt_serve.scoring import cluster, columns, publish, reading
from xlt_serve.scoring.answer import Answerer, Predictor, opened, refuse_unfit, workers_of
from xlt_serve.scoring.counts import Counts, Progress, count
from xlt_serve.scoring.input_columns import Kept, keep, of_rows
from xlt_serve.scoring.journal import Journal, Place, Recovered
from xlt_serve.scoring.local import ScoredWindow, answered, prefetched, refuse_bad
from xlt_serve.scoring.order import Layout, Order, Unit, difference, essence, layout
from xlt_serve.scoring.writers import Writer

PIPED = "pipe.json"
"""What the columns of a pipe are: its first rows say it, and a run that goes on begins later."""

Open = Callable[[Bundle, Order], Predictor]


@dataclass(frozen=True, slots=True)
class Summary:
    """``said``: the last line of the progress; empty where there was nothing left to do."""

    counts: Counts
    said: str


def score(order: Order, quiet: bool = True, open_predictor: Open | None = None) -> Summary:
    """Do it, or go on with it. Raises an XltError; what was written before that is kept."""
    bundle = bundles.load(order.bundle)
    found = layout(order)
    order = with_columns(order, bundle, found)
    refuse_unfit(bundle, order)
    opening = open_predictor or opened
    if order.out == PIPE:
        return _to_pipe(order, bundle, found, quiet, opening)
    sources = [source for unit in found.units for source in unit.sources]
    stamps = [places.stamp(source) for source in sources]
    wanted = _jsoned(essence(order, bundle, found.units))
    done = publish.finished_before(order, found, wanted)
    journal = Journal(publish.work_folder(order))
    if done is not None:
        journal.dismiss(wanted)
        return Summary(done, "")
    journal.refuse_foreign()
    with journal.locked():
        state = _begun(order, journal, wanted)
        if state is None:
            return Summary(publish.publish(order, found, journal), "")
        progress = Progress(state.counts, quiet=quiet)
        if order.engine == "ray":
            writers = [_writer(order, bundle, unit) for unit in found.units]
            cluster.start()
            journal.claim()
            cluster.run(order, bundle, found, writers, journal.folder, progress)
        else:
            writers = _locally(order, bundle, found, journal, state, progress, opening)
        for source, stamp in zip(sources, stamps, strict=True):
            if places.stamp(source) != stamp:
                raise DataError(
                    source.url, "changed while it was read", "use --overwrite to score it anew"
                )
        said = progress.finish()
        publish.finish(order, found, journal, writers, wanted, progress.done)
        publish.publish(order, found, journal)
    return Summary(progress.done, said)


def with_columns(order: Order, bundle: Bundle, found: Layout) -> Order:
    """The order with its text columns named, after making sure that the input has them."""
    pair = bundle.manifest.pair
    if pair and not order.pair:
        raise UsageError(
            bundle.manifest.name,
            "classifies pairs of texts",
            "name their columns: --text A --pair B",
        )
    if order.pair and not pair:
        raise UsageError(
            f"--pair {order.pair}",
            f"{bundle.manifest.name} classifies single texts",
            "leave it out",
        )
    first = found.units[0].sources[0]
    names = columns_of(first)
    if found.units[0].keyed:
        names += [key for key in first.keys if key not in names]
    guessed = names[0] if len(names) == 1 else "text"
    wanted = {"--text": order.text or guessed, "--pair": order.pair}
    wanted["--translation"] = order.translation
    for option, name in wanted.items():
        if name and names and name not in names:
            raise UsageError(
                f"{option} {name}", f"is no column of {first.url}; it has {', '.join(names)}"
            )
    clash = sorted(
        {order.prefix + name for name in columns.added(order.mode, bundle.manifest)} & set(names)
    )
    if clash:
        raise UsageError(
            ", ".join(clash),
            "is in the input already",
            "give another --prefix than " + order.prefix,
        )
    return replace(order, text=wanted["--text"])


def _writer(order: Order, bundle: Bundle, unit: Unit, kept: Kept | None = None) -> Writer:
    manifest = bundle.manifest
    return Writer(
        unit.format,
        unit.codec,
        kept or keep(unit.sources, unit.format, unit.keyed),
        columns.added(order.mode, manifest),
        order.prefix,
        manifest.labels,
        {"xlt_serve": json.dumps({"bundle": manifest.name, "version": manifest.version})},
    )


def _locally(
    order: Order,
    bundle: Bundle,
    found: Layout,
    journal: Journal,
    state: Recovered,
    progress: Progress,
    opening: Open,
) -> list[Writer]:
    """Every unit's data file filled and committed."""
    units = found.units
    writers: dict[int, Writer] = {}
    finished = state.finished
    place = Place(state.place.unit + 1) if finished else state.place
    known = _piped(journal) if state.place != Place() or finished else None
    if place.unit < len(units) and not units[place.unit].sources[0].is_pipe:
        # Columns that can't be written are refused before a model is loaded.
        writers[place.unit] = _writer(order, bundle, units[place.unit], known)
    stream = _ScoredWindows(order, bundle, units, place, opening)
    progress.start()
    with contextlib.closing(stream):
        for number in range(place.unit, len(units)):
            here, any_rows = place if number == place.unit else Place(number), False
            for piece in stream.of(number):
                any_rows = True
                refuse_bad(order, piece)
                if number not in writers:
                    kept = known or _columns_of(units[number], piece.window)
                    writers[number] = _writer(order, bundle, units[number], kept)
                    if kept and not known:
                        journal.note(PIPED, json.dumps(asdict(kept)).encode())
                writer = writers[number]
                keys = units[number].sources[piece.source].keys if units[number].keyed else {}
                data = writer.window(piece.window, piece.predictions, keys)
                if here.position == BEGIN and here.source == 0 and here.digest == "":
                    data = writer.header() + data
                new = count(piece.predictions)
                here = Place(number, piece.source, piece.window.end, piece.window.digest)
                journal.claim()
                journal.append(number, data, here, new)
                progress.update(new, _share(units, number, piece))
            if not any_rows:
                if number not in writers:
                    kept = known or _columns_of(units[number], None)
                    writers[number] = _writer(order, bundle, units[number], kept)
                journal.claim()
                empty = here.position == BEGIN and here.source == 0
                journal.append(number, writers[number].header() if empty else b"", here, Counts())
            journal.commit(here, end=True)
    return [
        writers.get(n) or _writer(order, bundle, unit, known or _columns_of(unit, None))
        for n, unit in enumerate(units)
    ]


def _piped(journal: Journal) -> Kept | None:
    """The columns that an earlier run found in the first rows of a pipe."""
    file = journal.folder / PIPED
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    return Kept(tuple(found["names"]), found["kinds"])


class _ScoredWindows:
    """The answered windows, unit by unit, prefetched by threads of their own."""

    def __init__(
        self, order: Order, bundle: Bundle, units: tuple[Unit, ...], place: Place, opening: Open
    ) -> None:
        answerer = Answerer(opening(bundle, order), order)
        windows = prefetched(reading.pieces(order, units, place))
        answering = answered(windows, answerer, workers_of(order), order.window)
        self._pieces = prefetched(answering)
        self._held: ScoredWindow | None = None

    def of(self, unit: int) -> Iterator[ScoredWindow]:
        while True:
            piece, self._held = self._held or next(self._pieces, None), None
            if piece is None:
                return
            if piece.unit != unit:
                self._held = piece
                return
            yield piece

    def close(self) -> None:
        self._pieces.close()  # type: ignore[attr-defined]


def _columns_of(unit: Unit, first: Window | None) -> Kept | None:
    """Of a pipe the first rows say what its columns are; None: files are asked themselves."""
    source = unit.sources[0]
    if not source.is_pipe or (source.format == "jsonl" and unit.format == "jsonl"):
        return None
    rows = first.rows if first else []
    if source.format == "jsonl":
        return of_rows(rows)
    return Kept(tuple(rows[0]) if rows else (), {})


def _share(units: tuple[Unit, ...], unit: int, piece: ScoredWindow) -> float:
    files = sum(len(u.sources) for u in units)
    before = sum(len(u.sources) for u in units[:unit]) + piece.source
    return (before + piece.window.progress) / files


def _to_pipe(order: Order, bundle: Bundle, found: Layout, quiet: bool, opening: Open) -> Summary:
    """Nothing to resume and nothing to hide: each window as soon as it is answered."""
    unit = found.units[0]
    progress = Progress(Counts(), quiet=quiet or sys.stdout.isatty())
    stream = _ScoredWindows(order, bundle, found.units, Place(), opening)
    progress.start()
    writer: Writer | None = None
    out = sys.stdout.buffer
    with contextlib.closing(stream):
        for piece in stream.of(0):
            if writer is None:
                writer = _writer(order, bundle, unit, _columns_of(unit, piece.window))
                out.write(writer.header())
            refuse_bad(order, piece)
            keys = unit.sources[piece.source].keys if unit.keyed else {}
            out.write(writer.window(piece.window, piece.predictions, keys))
            out.flush()
            progress.update(count(piece.predictions), piece.window.progress)
    if writer is None:
        out.write(_writer(order, bundle, unit, _columns_of(unit, None)).header())
        out.flush()
    return Summary(progress.done, progress.finish())


def _begun(order: Order, journal: Journal, wanted: dict[str, Any]) -> Recovered | None:
    """Where to go on; None: all is done but for the last renames."""
    before = journal.order()
    if before is not None:
        changed = difference(before, wanted)
        if not changed:
            return None if (journal.folder / "receipt.json").exists() else journal.recover()
        if not order.overwrite and not journal.is_empty():
            raise UsageError(
                order.out,
                f"was begun with something else: {'; '.join(changed)}",
                "give what it was begun with, or --overwrite to begin anew",
            )
    journal.begin(wanted)
    return Recovered()


def _jsoned(value: dict[str, Any]) -> dict[str, Any]:
    """As it is after being written and read again."""
    out: dict[str, Any] = json.loads(json.dumps(value))
    return out
