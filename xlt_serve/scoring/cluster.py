"""Several machines: the same windows, answered by actors of Ray Data.

The driver cuts the input into shards, runs of windows that each know where they begin. An actor
reads its shard itself, answers and writes it as one part, whole or not at all, into the work folder,
which all machines must see. Parts that are there are not made again: a killed actor costs its shard,
a killed driver nothing that was finished. The parts in order are, byte for byte, what one machine
would have written.
"""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, UsageError, XltError, with_name
from xlt_serve.files.formats import read
from xlt_serve.files.packages import needed
from xlt_serve.files.window import BEGIN, Position
from xlt_serve.scoring.answer import Answerer, opened
from xlt_serve.scoring.counts import Counts, Progress, count
from xlt_serve.scoring.journal import Journal, explained, write_whole
from xlt_serve.scoring.local import ScoredWindow, refuse_bad
from xlt_serve.scoring.order import Layout, Order, Unit
from xlt_serve.scoring.writers import Writer
from xlt_serve.signing import key_files
from xlt_serve.signing.key_files import Signers

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
    ray = needed("ray", "--engine ray", "ray")
    needed("ray.data", "--engine ray", "ray")
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level="error", include_dashboard=False)
    return ray


def run(
    order: Order,
    bundle: Bundle,
    found: Layout,
    writers: Sequence[Writer],
    folder: Path,
    progress: Progress,
) -> None:
    """Every unit's data file, from parts that Ray's actors made."""
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    todo, order_of_parts = [], []
    for shard in shards(order, found.units):
        order_of_parts.append(shard)
        counts = _counts(parts, shard)
        if counts is None:
            todo.append(shard)
        else:
            progress.update(counts, 0.0)
    if todo:
        _answer(start(), order, bundle, found, writers, parts, todo, len(order_of_parts), progress)
    _joined(found, writers, folder, order_of_parts)


def _answer(
    ray: Any,
    order: Order,
    bundle: Bundle,
    found: Layout,
    writers: Sequence[Writer],
    parts: Path,
    todo: Sequence[Shard],
    total: int,
    progress: Progress,
) -> None:
    ray.data.DataContext.get_current().enable_progress_bars = False
    gpus = 0 if order.provider == "cpu" else 1
    cores = int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1))
    actors = min(order.workers or max(1, cores), len(todo))
    data = ray.data.from_items(
        [{"shard": shard.number} for shard in todo], override_num_blocks=len(todo)
    )
    answered = data.map_batches(
        Actor,
        fn_constructor_kwargs={
            "order": order,
            "bundle": str(bundle.path.absolute()),
            "signers": key_files.required(),  # variables stay on the machine that they are set on
            "units": found.units,
            "writers": list(writers),
            "parts": str(parts.absolute()),
            "todo": {shard.number: shard for shard in todo},
        },
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_gpus=gpus or None,
    )
    done = total - len(todo)
    for row in answered.iter_rows():
        if row["problem"]:
            raise_problem(row["problem"])
        done += 1
        progress.update(Counts.of(json.loads(row["counts"])), done / total)


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
        self.answerer = Answerer(opened(bundles.load(bundle, signers or None), order), order)

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

    def _make(self, shard: Shard) -> Counts:
        unit = self.units[shard.unit]
        source = unit.sources[shard.source]
        keys = source.keys if unit.keyed else {}
        counts = Counts()
        data = b""
        windows = read(source, shard.start, self.order.window)
        for _, window in zip(range(shard.windows), windows, strict=False):
            done = [
                (numbers, self.answerer.answer(window, numbers))
                for numbers in self.answerer.slices(window)
            ]
            predictions = self.answerer.assembled(window, done)
            refuse_bad(self.order, ScoredWindow(shard.unit, shard.source, window, predictions))
            data += self.writers[shard.unit].window(window, predictions, keys)
            counts.add(count(predictions))
        write_whole(_part(self.parts, shard, "data"), data)
        about = counts.to_dict() | {"bytes": len(data)}
        write_whole(_part(self.parts, shard, "json"), json.dumps(about).encode())
        return counts


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
