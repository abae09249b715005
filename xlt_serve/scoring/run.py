"""From an order to its output: resumed where it stood, refused where something changed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files import places
from xlt_serve.files.places import PIPE
from xlt_serve.files.window import BEGIN, Window
from xlt_serve.scoring import cluster, columns, previous, publish, reading
from xlt_serve.scoring.answer import Answerer, Predictor, opened, refuse_unfit, workers_of
from xlt_serve.scoring.answered import Answer, AnsweredTexts
from xlt_serve.scoring.asked_columns import with_columns
from xlt_serve.scoring.counts import Counts, Progress, count
from xlt_serve.scoring.input_columns import Kept, keep, of_rows
from xlt_serve.scoring.journal import Journal, Place, Recovered
from xlt_serve.scoring.local import ScoredWindow, answered, prefetched, refuse_bad
from xlt_serve.scoring.order import Layout, Order, Unit, difference, essence, layout
from xlt_serve.scoring.previous import Previous
from xlt_serve.scoring.tolerance import TooManyErrors, Watch
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
    before = publish.finished_before(order, found, wanted)
    journal = Journal(publish.work_folder(order))
    if before.whole:
        journal.dismiss(lambda left: publish.covers(wanted, left))
        return Summary(before.counts, "")
    found, claimed = before.todo(found), _claimed(order, before, found, wanted)
    journal.refuse_foreign()
    with journal.locked():
        state = _begun(order, journal, claimed)
        if state is None:
            return Summary(publish.publish(order, found, journal, before), "")
        made = _Run(order, bundle, found, journal, state, Progress(state.counts, quiet=quiet))
        writers, counts = made.done(opening, before)
        for source, stamp in zip(sources, stamps, strict=True):
            if places.stamp(source) != stamp:
                raise DataError(
                    source.url, "changed while it was read", "use --overwrite to score it anew"
                )
        said = made.said(before.counts)
        publish.finish(order, found, journal, writers, wanted, counts, before)
        publish.publish(order, found, journal, before)
    return Summary(made.progress.done, said)


def _claimed(
    order: Order, before: publish.Before, found: Layout, wanted: dict[str, Any]
) -> dict[str, Any]:
    """The order that the work is for: that of what is not there yet."""
    out = dict(wanted)
    if before.kept:
        todo = [n for n, unit in enumerate(found.units) if unit.name not in before.kept]
        out |= {key: [wanted[key][n] for n in todo] for key in ("input", "output")}
    if order.key and before.outputs:
        out["key"] = order.key
    return out


class _Run:
    """What is left to do of an order, on this machine or on several."""

    def __init__(
        self,
        order: Order,
        bundle: Bundle,
        found: Layout,
        journal: Journal,
        state: Recovered,
        progress: Progress,
    ) -> None:
        self.order, self.bundle, self.found = order, bundle, found
        self.journal, self.state, self.progress = journal, state, progress
        self.watch = Watch(order.max_errors, state.counts)
        self.is_fresh = not state.counts.rows
        self.previous: Previous | None = None
        self.held = AnsweredTexts()

    def done(self, opening: Open, before: publish.Before) -> tuple[list[Writer], list[Counts]]:
        """Every unit's data file, and how each is written and what is in it."""
        order, units, journal = self.order, self.found.units, self.journal
        try:
            if order.key and before.outputs:
                self.previous = self._copied(before)
            if order.engine == "ray":
                writers = [_writer(order, self.bundle, unit) for unit in units]
                cluster.start()
                journal.claim()
                counts = cluster.run(
                    order,
                    self.bundle,
                    self.found,
                    writers,
                    journal.folder,
                    self.progress,
                    self.watch,
                )
            else:
                writers = self._locally(opening)
                counts = journal.counts(len(units))
            self.watch.end()
        except TooManyErrors:
            self.held.close()
            if order.max_errors is None and self.is_fresh:
                journal.clear()  # a failed start: the next one may be about anything
            raise
        return writers, counts

    def said(self, before: Counts) -> str:
        parts = [self.progress.finish()]
        if self.previous:
            parts.append(f"{self.previous.found:,} as before")
        if before.rows:
            parts.append(f"beside {before.rows:,} rows that were there")
        return " · ".join(parts)

    def _copied(self, before: publish.Before) -> Previous:
        self.journal.claim()
        file = self.journal.folder / previous.NAME
        outputs = before.outputs
        if not file.exists() and not publish.is_as_made(outputs, before.replaced):
            raise UsageError(
                self.order.out,
                "is not as it was made, so that its rows can't be trusted",
                "give --overwrite without --key",
            )
        previous.copy(outputs, self.order, file)
        return Previous(file, self.order)

    def _locally(self, opening: Open) -> list[Writer]:
        """Every unit's data file filled and committed."""
        units, journal, state = self.found.units, self.journal, self.state
        place = Place(state.place.unit + 1) if state.finished else state.place
        known = _piped(journal) if state.place != Place() or state.finished else None
        writers: dict[int, Writer] = {}

        def writer(number: int, first: Window | None = None) -> Writer:
            if number not in writers:
                kept = known or _columns_of(units[number], first)
                writers[number] = _writer(self.order, self.bundle, units[number], kept)
                if first and kept and not known:
                    journal.note(PIPED, json.dumps(asdict(kept)).encode())
            return writers[number]

        if place.unit < len(units) and not units[place.unit].sources[0].is_pipe:
            writer(place.unit)  # columns that can't be written are refused before a model is loaded
        stream = self._stream(place, opening)
        self.progress.start()
        with contextlib.closing(stream):
            for number in range(place.unit, len(units)):
                here, any_rows = place if number == place.unit else Place(number), False
                for piece in stream.of(number):
                    any_rows = True
                    refuse_bad(self.order, piece)
                    self.watch.see(piece.answers)
                    here = self._append(writer(number, piece.window), piece, here)
                if not any_rows:
                    empty = here.position == BEGIN and here.source == 0
                    data = writer(number).header() if empty else b""
                    journal.claim()
                    journal.append(number, data, here, Counts())
                journal.commit(here, end=True)
        return [writer(number) for number in range(len(units))]

    def _append(self, writer: Writer, piece: ScoredWindow, here: Place) -> Place:
        """A window into its unit's data file; the place after it."""
        number, unit = piece.unit, self.found.units[piece.unit]
        keys = unit.sources[piece.source].keys if unit.keyed else {}
        data = writer.window(piece.window, piece.answers, keys)
        if here.position == BEGIN and here.source == 0 and here.digest == "":
            data = writer.header() + data
        new = count(piece.answers)
        here = Place(number, piece.source, piece.window.end, piece.window.digest)
        self.journal.claim()
        self.journal.append(number, data, here, new)
        self.progress.update(new, _share(self.found.units, number, piece), piece.ahead)
        return here

    def _stream(self, place: Place, opening: Open) -> _ScoredWindows:
        journal, order = self.journal, self.order
        held = self.held = AnsweredTexts(journal.folder, journal.claim, strict=order.strict)
        if not journal.is_new:
            held.recover(self.state.place)
        journal.before, journal.after = held.settle, held.forget
        before = self.previous.answers if self.previous else None
        answerer = Answerer(opening(self.bundle, order), order, held, before)
        return _ScoredWindows(order, answerer, self.found.units, place, self.progress)


def _writer(order: Order, bundle: Bundle, unit: Unit, kept: Kept | None = None) -> Writer:
    manifest = bundle.manifest
    return Writer(
        unit.format,
        unit.codec,
        (kept or keep(unit.sources, unit.format, unit.keyed)).only(order.choice),
        columns.added(order.mode, manifest),
        order.prefix,
        manifest.labels,
        {"xlt_serve": json.dumps({"bundle": manifest.name, "version": manifest.version})},
        order.choice,
    )


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
        self,
        order: Order,
        answerer: Answerer,
        units: tuple[Unit, ...],
        place: Place,
        progress: Progress,
    ) -> None:
        def show(piece: ScoredWindow, answers: list[Answer]) -> None:
            tokens = sum(int(answer["tokens"]) for answer in answers)
            progress.answered(piece.ahead, len(answers), tokens)

        windows = prefetched(reading.pieces(order, units, place))
        answering = answered(windows, answerer, workers_of(order), order.window, show)
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
    watch = Watch(order.max_errors, Counts())
    answerer = Answerer(opening(bundle, order), order)
    stream = _ScoredWindows(order, answerer, found.units, Place(), progress)
    progress.start()
    writer: Writer | None = None
    out = sys.stdout.buffer
    with contextlib.closing(stream):
        for piece in stream.of(0):
            refuse_bad(order, piece)
            watch.see(piece.answers)
            if writer is None:
                writer = _writer(order, bundle, unit, _columns_of(unit, piece.window))
                out.write(writer.header())
            keys = unit.sources[piece.source].keys if unit.keyed else {}
            out.write(writer.window(piece.window, piece.answers, keys))
            out.flush()
            progress.update(count(piece.answers), piece.window.progress, piece.ahead)
    if writer is None:
        out.write(_writer(order, bundle, unit, _columns_of(unit, None)).header())
        out.flush()
    watch.end()
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
