"""Several machines: the same windows, answered by actors of Ray Data.

The driver cuts the input into shards, runs of windows that each know where they begin. An actor
reads its shard itself, answers and writes it as one part, whole or not at all, into the work folder,
which all machines must see. Parts that are there are not made again: a killed actor costs its shard,
a killed driver nothing that was finished. The parts in order are, byte for byte, what one machine
would have written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import shutil
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError, XltError, with_name
from xlt_serve.files.formats import read
from xlt_serve.files.packages import needed
from xlt_serve.files.places import Source
from xlt_serve.files.window import BEGIN, Position
from xlt_serve.scoring import previous
from xlt_serve.scoring.answer import Answerer, Predictor, opened, workers_of
from xlt_serve.scoring.answered import AnsweredTexts
from xlt_serve.scoring.counts import Counts, Progress, count
from xlt_serve.scoring.journal import Journal, Place, explained, write_whole
from xlt_serve.scoring.local import ScoredWindow, answered, prefetched, refuse_bad
from xlt_serve.scoring.order import Layout, Order, Unit
from xlt_serve.scoring.tolerance import Watch
from xlt_serve.scoring.writers import Writer
from xlt_serve.signing import key_files
from xlt_serve.signing.key_files import Signers

SIGN = "shared"
"""A file among the parts by which a machine knows the folder."""
SHARD = 4
"""Windows in a shard: a killed actor loses at most these."""


@dataclass(frozen=True, slots=True)
class Shard:
    """``windows`` windows of one source from a position on; ``number`` is its place in the output."""

    number: int
    unit: int
    source: int
    start: Position
    windows: int


def shards(order: Order, units: Sequence[Unit]) -> Iterator[Shard]:
    """The input is read once to find where windows begin: a quoted field may hold any line."""
    number = 0
    for unit, described in enumerate(units):
        for index, source in enumerate(described.sources):
            start, held = BEGIN, 0
            for window in read(source, BEGIN, order.window):
                held += 1
                if held == SHARD:
                    yield Shard(number, unit, index, start, held)
                    number, start, held = number + 1, window.end, 0
            if held:
                yield Shard(number, unit, index, start, held)
                number += 1


def start() -> Any:
    """Ray, running. It may fail, so it comes before anything is written."""
    _quiet()
    ray = needed("ray", "--engine ray", "ray")
    needed("ray.data", "--engine ray", "ray")
    if not ray.is_initialized():
        with _hushed():
            ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    return ray


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """What code that is not Python's says on standard error as it starts."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _quiet() -> None:
    """Ray says much on standard error, where our progress stands; what fails we say ourselves."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it says that it will be
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of its parts in C++
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)


def run(
    order: Order,
    bundle: Bundle,
    found: Layout,
    writers: Sequence[Writer],
    folder: Path,
    progress: Progress,
    watch: Watch,
) -> list[Counts]:
    """Every unit's data file, from parts that Ray's actors made; what is in each."""
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    write_whole(parts / SIGN, str(folder.absolute()).encode())
    todo, order_of_parts = [], []
    for shard in shards(order, found.units):
        order_of_parts.append(shard)
        counts = _counts(parts, shard)
        if counts is None:
            todo.append(shard)
        else:
            progress.update(counts, 0.0)
            watch.add(counts)
    if todo:
        job = RayJob(order, bundle, found.units, tuple(writers), parts, todo, len(order_of_parts))
        _answer(start(), job, progress, watch)
    _joined(found, writers, folder, order_of_parts)
    out = [Counts() for _ in found.units]
    for shard in order_of_parts:
        out[shard.unit].add(_counts(parts, shard) or Counts())
    return out


@dataclass(frozen=True, slots=True)
class RayJob:
    """What the actors are to do: ``todo`` of ``total`` shards."""

    order: Order
    bundle: Bundle
    units: tuple[Unit, ...]
    writers: tuple[Writer, ...]
    parts: Path
    todo: Sequence[Shard]
    total: int


def _answer(ray: Any, job: RayJob, progress: Progress, watch: Watch) -> None:
    ray.data.DataContext.get_current().enable_progress_bars = False
    _quiet()  # what importing it has set
    order = job.order
    gpus = 0 if order.provider == "cpu" else 1
    units = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 0))
    if gpus and not units:
        raise UsageError(
            f"--provider {order.provider}",
            "Ray knows of no GPU in its cluster",
            "start its nodes where GPUs are (ray start --num-gpus N), or use --provider cpu",
        )
    actors = min(order.workers or max(1, units), len(job.todo))
    data = ray.data.from_items(
        [{"shard": shard.number} for shard in job.todo], override_num_blocks=len(job.todo)
    )
    answered = data.map_batches(
        Actor,
        fn_constructor_kwargs={
            "order": order,
            "bundle": str(job.bundle.path.absolute()),
            "signers": key_files.required(),  # variables stay on the machine that they are set on
            "units": job.units,
            "writers": list(job.writers),
            "parts": str(job.parts.absolute()),
            "todo": {shard.number: shard for shard in job.todo},
        },
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_gpus=gpus or None,  # each its own: Ray hides the others from it
    )
    done = job.total - len(job.todo)
    for row in answered.iter_rows():
        if row["problem"]:
            raise_problem(row["problem"])
        done += 1
        counts = Counts.of(json.loads(row["counts"]))
        progress.update(counts, done / job.total)
        watch.add(counts)


class Actor:
    """A worker process with a model of its own. Ray Data starts it again elsewhere if it dies, and
    gives it its shard once more."""

    def __init__(
        self,
        order: Order,
        bundle: str,
        units: tuple[Unit, ...],
        writers: list[Writer],
        parts: str,
        todo: dict[int, Shard],
        signers: Signers | None = None,
    ) -> None:
        self.order, self.units, self.writers = order, units, writers
        self.parts, self.todo = Path(parts), todo
        self.bundle, self.signers = bundle, signers
        self.predictor: Predictor | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {"counts": [], "problem": []}
        for number in batch["shard"]:
            shard = self.todo[int(number)]
            problem = ""
            counts = _counts(self.parts, shard)  # made before this actor's predecessor was killed
            if counts is None:
                try:
                    counts = self._make(shard)
                except Exception as error:
                    counts = Counts()
                    problem = problem_of(error, self._name(shard))
            out["counts"].append(json.dumps(counts.to_dict()))
            out["problem"].append(problem)
        return out

    def _name(self, shard: Shard) -> str:
        url = self.units[shard.unit].sources[shard.source].url
        return f"{url} from line {shard.start.line + 1}"

    def _opened(self) -> Predictor:
        """Not in the constructor, whose errors Ray would tell in pages of its own."""
        if self.predictor is None:
            refuse_unshared(self.parts, [unit.sources for unit in self.units], self.bundle)
            found = bundles.load(self.bundle, self.signers or None)
            self.predictor = opened(found, self.order)
        return self.predictor

    def _make(self, shard: Shard) -> Counts:
        """Reading, answering and writing overlap; answers are kept until the part is whole."""
        unit = self.units[shard.unit]
        source = unit.sources[shard.source]
        keys = source.keys if unit.keyed else {}
        kept = self.parts / f"{shard.number:07}"
        kept.mkdir(exist_ok=True)
        held = AnsweredTexts(kept)
        before = self.parts.parent / previous.NAME
        found = previous.Previous(before, self.order).answers if before.exists() else None
        held.recover(Place(shard.unit, shard.source, shard.start))
        answerer = Answerer(self._opened(), self.order, held, found)
        windows = islice(read(source, shard.start, self.order.window), shard.windows)
        pieces = (ScoredWindow(shard.unit, shard.source, window) for window in windows)
        workers = 1 if self.order.provider == "cpu" else workers_of(replace(self.order, workers=0))
        counts, data = Counts(), []
        answering = answered(prefetched(pieces), answerer, workers, self.order.window)
        with contextlib.closing(answering):
            for piece in answering:
                refuse_bad(self.order, piece)
                data.append(self.writers[shard.unit].window(piece.window, piece.answers, keys))
                counts.add(count(piece.answers))
        whole = b"".join(data)
        write_whole(_part(self.parts, shard, "data"), whole)
        about = counts.to_dict() | {"bytes": len(whole)}
        write_whole(_part(self.parts, shard, "json"), json.dumps(about).encode())
        shutil.rmtree(kept, ignore_errors=True)
        return counts


def refuse_unshared(parts: Path, sources: Sequence[Sequence[Source]], bundle: str) -> None:
    """On the machine of an actor: what it reads and writes must be there, under the same name."""
    here = f"on {platform.node()}"
    if not (parts / SIGN).is_file():
        raise UsageError(
            parts.parent,
            f"is not seen {here}, and all machines write their parts there",
            "give --work DIR, a folder that all machines share under one name",
        )
    files = [source.url for part in sources for source in part if "://" not in source.url]
    for place in (bundle, *files[:1]):
        if not Path(place).exists():
            raise UsageError(
                place,
                f"is not seen {here}",
                "put it where all machines see it under one name, or give a URL",
            )


class Elsewhere(Exception):
    """An actor's error, in the words of its own traceback."""


def problem_of(error: Exception, place: str) -> str:
    """An error as text for the driver. Raised in an actor it would reach the user as pages of Ray's
    tracebacks, and lose its class on the way."""
    if isinstance(error, XltError):
        said = [error.value, error.rule, error.remedy]
    else:
        reason = with_name(error)
        said = [place, f"can't be scored ({reason})", "what was scored is kept"]
    whole = "".join(traceback.format_exception(error))
    return json.dumps({"usage": isinstance(error, UsageError), "said": said, "cause": whole})


def raise_problem(problem: str) -> NoReturn:
    found = json.loads(problem)
    kind = UsageError if found["usage"] else DataError
    raise kind(*found["said"]) from Elsewhere(found["cause"])


def _part(parts: Path, shard: Shard, ending: str) -> Path:
    return parts / f"{shard.number:07}.{ending}"


def _counts(parts: Path, shard: Shard) -> Counts | None:
    """Of a part that is there and whole; its description is written last."""
    try:
        about = json.loads(_part(parts, shard, "json").read_bytes())
        size = about.pop("bytes")
        if _part(parts, shard, "data").stat().st_size != size:
            return None
        return Counts.of(about)
    except (OSError, ValueError, KeyError):
        return None


def _joined(found: Layout, writers: Sequence[Writer], folder: Path, parts: Sequence[Shard]) -> None:
    book = Journal(folder)
    with explained(folder):
        for number in range(len(found.units)):
            half = book.data(number).with_suffix(".half")
            with half.open("wb") as out:
                out.write(writers[number].header())
                for shard in parts:
                    if shard.unit == number:
                        with _part(folder / "parts", shard, "data").open("rb") as part:
                            shutil.copyfileobj(part, out, 1 << 20)
            half.replace(book.data(number))
