"""The last step: finished files take their names in the output. Whatever else lies there stays.

A file of the output is replaced as a whole, by a rename. Only files that this run writes are ever
replaced, and only with ``--overwrite``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xlt_serve.bundle import digest
from xlt_serve.errors import UsageError
from xlt_serve.files import places
from xlt_serve.files.places import PIPE, Source
from xlt_serve.scoring import staging
from xlt_serve.scoring.counts import Counts
from xlt_serve.scoring.journal import Journal, explained, write_whole
from xlt_serve.scoring.order import (
    ADDED,
    RECEIPT,
    Layout,
    Order,
    difference,
    output_name,
    targets,
)
from xlt_serve.scoring.writers import Writer

HALF = ".xlt-half"
"""Ends the name of a copy that is not whole yet."""


def work_folder(order: Order) -> Path:
    """Beside the output, so that the last step is a rename; for object stores in the user's cache."""
    name = output_name(order.out)
    if order.work or places.is_remote(order.out):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(order.work) if order.work else cache / "xlt-serve" / "score"
        # The same relative name means another output in another folder.
        key = name if places.is_remote(name) else str(Path(name).absolute())
        return folder / hashlib.sha256(key.encode()).hexdigest()[:16]
    return Path(name + ".partial")


@dataclass(frozen=True, slots=True)
class Before:
    """What a finished output has that can stay: ``kept`` files by name, with their digests. ``counts``
    are of these; ``whole``: there is nothing else to do. ``replaced``: digests of all its files."""

    kept: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Counts] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    whole: bool = False
    replaced: tuple[str, ...] = ()
    outputs: tuple[Source, ...] = ()

    def todo(self, layout: Layout) -> Layout:
        units = tuple(unit for unit in layout.units if unit.name not in self.kept)
        return replace(layout, units=units)


def finished_before(order: Order, layout: Layout, wanted: dict[str, Any]) -> Before:
    """What of a finished output this very order made. Another output in its place is refused, and so is
    what can't be replaced by a file of ours."""
    name = output_name(order.out)
    _refuse_wrong_kind(order.out, name, layout)
    _refuse_work(order, layout)
    receipt = _receipt(name + RECEIPT)
    changed = difference(_how(receipt["order"]), _how(wanted)) if receipt else []
    before = Before()
    if receipt and not changed and PIPE not in order.sources:
        before = _kept(name, layout, receipt, wanted)
    if before.whole or order.overwrite or (work_folder(order) / "receipt.json").exists():
        return before
    if receipt and order.key and places.exists(name):
        if changed:
            raise UsageError(
                order.out,
                f"was made with something else: {'; '.join(changed)}",
                "give what it was made with, or --overwrite without --key",
            )
        return before
    for target in targets(order, before.todo(layout)) if before.kept else [name]:
        if places.exists(target) and not places.is_empty_folder(target):
            given = target if before.kept else order.out
            raise UsageError(given, "is there already", _remedy(layout, bool(before.kept)))
    if receipt is None and places.exists(name + RECEIPT):
        raise UsageError(
            name + RECEIPT,
            "is there already and no receipt of ours",
            "move it away, or give --overwrite",
        )
    return before


def covers(whole: dict[str, Any], part: dict[str, Any]) -> bool:
    """An output of the one order has all that the other would make."""
    if difference(_how(whole), _how({k: v for k, v in part.items() if k != "key"})):
        return False
    return all(entry in whole[name] for name in ("input", "output") for entry in part.get(name, []))


def _how(order: dict[str, Any]) -> dict[str, Any]:
    """Of an order how it scores, not what. Columns that were added later: an output that was whole
    without them stays whole."""
    return {key: value for key, value in order.items() if key not in ("input", "output", ADDED)}


def _kept(name: str, layout: Layout, receipt: dict[str, Any], wanted: dict[str, Any]) -> Before:
    """Files that were made of the same input and are as they were made."""
    order, output = receipt["order"], receipt["output"]
    outputs = tuple(
        Source(f"{name}/{unit}" if unit else name, unit or name, format, codec)
        for unit, format, codec in order["output"]
    )
    digests = output if isinstance(output, dict) else {"": output}
    # An object store's are not known: they are believed.
    replaced = tuple(str((digests or {}).get(unit, "")) for unit, _, _ in order["output"])
    files = {unit: Counts.of(counts) for unit, counts in receipt.get("files", {}).items()}
    if not layout.folder:
        whole = [order[key] for key in ("input", "output")] == [wanted["input"], wanted["output"]]
        with contextlib.suppress(FileNotFoundError):
            if whole and output == _identity(name, layout):
                return Before({"": output}, files, Counts.of(receipt["counts"]), True)
        return Before(replaced=replaced, outputs=outputs)
    made = [json.dumps(pair) for pair in zip(order["input"], order["output"], strict=False)]
    kept: dict[str, Any] = {}
    given = zip(layout.units, wanted["input"], wanted["output"], strict=True)
    for unit, source, target in given:
        same = json.dumps([source, target]) in made
        if same and places.is_remote(name) and places.exists(f"{name}/{unit.name}"):
            kept[unit.name] = None
        elif same and digests.get(unit.name) == places.digest_of(f"{name}/{unit.name}"):
            kept[unit.name] = digests[unit.name]
    counts = Counts.of(receipt["counts"])
    if len(kept) < len(made):  # some of its files are not of this input any more
        if not files:  # by an earlier version, which did not count each: all is scored again
            return Before(replaced=replaced, outputs=outputs)
        counts = Counts()
        for unit_name in kept:
            counts.add(files[unit_name])
    whole = len(kept) == len(layout.units)
    return Before(kept, files, counts, whole, replaced, outputs)


def is_as_made(outputs: Sequence[Source], digests: Sequence[str]) -> bool:
    """Nobody wrote to a finished output; object stores are believed."""
    if any(places.is_remote(output.url) for output in outputs):
        return True
    return [places.digest_of(output.url) for output in outputs] == [*digests]


def finish(
    order: Order,
    layout: Layout,
    journal: Journal,
    writers: list[Writer],
    wanted: dict[str, Any],
    counts: list[Counts],
    before: Before,
) -> None:
    """The whole output under ``final`` in the work folder, and its receipt; ``counts`` of each unit."""
    final = journal.folder / "final"
    with explained(journal.folder):
        made = _made(final, layout)
        for number, (unit, writer) in enumerate(zip(layout.units, writers, strict=True)):
            target = made[number]
            target.parent.mkdir(parents=True, exist_ok=True)
            data = journal.data(number)
            if unit.format == "parquet":
                staging.finish(data, target, writer.schema())
                _sync(target)
            else:
                _linked(data, target)
    output = None if places.is_remote(order.out) else _identity(str(final), layout)
    if output is not None and before.kept:
        output = before.kept | output
    all_counts = Counts()
    for part in (before.counts, *counts):
        all_counts.add(part)
    files = {name: part for name, part in before.files.items() if name in before.kept}
    files |= {unit.name: part for unit, part in zip(layout.units, counts, strict=True)}
    receipt = {"order": wanted, "output": output, "counts": all_counts.to_dict()}
    if files.keys() == {name for name, _, _ in wanted["output"]}:
        receipt["files"] = {name: part.to_dict() for name, part in files.items()}
    write_whole(
        journal.folder / "receipt.json", json.dumps(receipt, indent=1, ensure_ascii=False).encode()
    )


def publish(order: Order, layout: Layout, journal: Journal, before: Before) -> Counts:
    """By renames, copies or uploads; may be done again if it was killed on the way."""
    final, file = journal.folder / "final", journal.folder / "receipt.json"
    receipt = json.loads(file.read_text(encoding="utf-8"))
    name = output_name(order.out)
    out = Path(name)
    _refuse_wrong_kind(order.out, name, layout)
    if not order.overwrite:
        _refuse_newcomers(order, layout, final, before.replaced if order.key else ())
    if places.is_remote(name):
        for made, target in zip(_made(final, layout), targets(order, layout), strict=True):
            places.upload(made, target)
        places.upload(file, name + RECEIPT)
    else:
        with explained(out):
            if final.exists():
                _placed(final, out)
                _sync(out.parent)
            _moved(file, out.with_name(out.name + RECEIPT))
    journal.remove()
    return Counts.of(receipt["counts"])


def _receipt(place: str) -> dict[str, Any] | None:
    """What stands beside an output; None where there is nothing, or nothing of ours."""
    raw = places.read_small(place)
    try:
        found = json.loads(raw or b"null")
    except ValueError:
        return None
    ours = isinstance(found, dict) and found.keys() >= {"order", "output", "counts"}
    return found if ours else None


def _identity(name: str, layout: Layout) -> Any:
    """Of an output's own files, whatever else lies beside them; object stores are believed."""
    if places.is_remote(name):
        return None
    path = Path(name)
    if layout.folder:
        return {unit.name: digest(path / unit.name) for unit in layout.units}
    return digest(path)


def _remedy(layout: Layout, finished: bool) -> str:
    if finished:
        return (
            "its input is another now: give --overwrite to replace such files and no others, or --key"
            " for changed rows alone"
        )
    if layout.folder:
        return "remove it, or give --overwrite to replace its files that IN has too, and no others"
    return "remove it, or give --overwrite"


def _refuse_wrong_kind(given: str, name: str, layout: Layout) -> None:
    """A folder is never replaced by a file, nor a file by a folder."""
    if places.kind(name + RECEIPT) == "folder":
        raise UsageError(name + RECEIPT, "is a folder, and the receipt a file", "move it away")
    kind = places.kind(name)
    if not layout.folder:
        if kind == "folder":
            raise UsageError(given, "is a folder", "give a file, or end it in / for a file of each")
        return
    if kind == "file":
        raise UsageError(given, "is a file, and the output a folder", "choose another name")
    for unit in layout.units:
        parts = unit.name.split("/")
        for depth in range(1, len(parts) + 1):
            inner = "/".join([name, *parts[:depth]])
            found, needed = places.kind(inner), "file" if depth == len(parts) else "folder"
            if found is None:
                break
            if found != needed:
                raise UsageError(
                    inner, f"is a {found}, and the output has a {needed} there", "move it away"
                )


def _refuse_work(order: Order, layout: Layout) -> None:
    """What a run left half done is cleared away by the next one."""
    work = work_folder(order).resolve()
    for source in (source for unit in layout.units for source in unit.sources):
        if not source.is_pipe and Path(places.canonical(source.url)).is_relative_to(work):
            raise UsageError(
                source.url, f"lies in the folder of unfinished work, {work}", "copy it elsewhere"
            )


def _refuse_newcomers(order: Order, layout: Layout, final: Path, replaced: Sequence[str]) -> None:
    """What took the output's name while we scored was not there to be refused at the beginning. What
    is as we made it was put there by this run, before it was killed; ``replaced``: digests of files
    that it is to replace."""
    receipt = output_name(order.out) + RECEIPT
    late = [receipt] if places.exists(receipt) and _receipt(receipt) is None else []
    for made, there in zip(_made(final, layout), targets(order, layout), strict=True):
        if not made.exists() or not places.exists(there):
            continue
        if places.digest_of(there) not in (digest(made), *replaced):
            late.append(there)
    if late:
        raise UsageError(
            late[0],
            "was put there while this ran",
            "move it away, or give --overwrite; what was scored is kept",
        )


def _made(final: Path, layout: Layout) -> list[Path]:
    """The finished file of each unit."""
    return [final / unit.name if layout.folder else final for unit in layout.units]


def _placed(final: Path, out: Path) -> None:
    """The output under its name: at once where the name is free, else file by file."""
    if final.is_dir() and out.is_dir() and any(out.iterdir()):
        for file in sorted(file for file in final.rglob("*") if file.is_file()):
            target = out / file.relative_to(final)
            target.parent.mkdir(parents=True, exist_ok=True)
            _moved(file, target)
            _sync(target.parent)
        shutil.rmtree(final)
    else:
        # Of an empty folder that is a link, what it leads to.
        _moved(final, out.resolve() if out.is_dir() else out)


def _moved(path: Path, target: Path) -> None:
    """A rename, where need be of a copy beside the target: whole or not at all."""
    try:
        path.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        half = target.with_name(f".{target.name}{HALF}")
        try:
            _copied(path, half)
            half.replace(target)
        except BaseException:
            _removed(half)  # a disk that is full needs the room
            raise


def _copied(path: Path, target: Path) -> None:
    """On the disk before this returns."""
    _removed(target)  # what a run left that was killed here
    if path.is_dir():
        target.mkdir()
        for part in path.iterdir():
            _copied(part, target / part.name)
    else:
        shutil.copyfile(path, target)
    _sync(target)


def _removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _linked(data: Path, target: Path) -> None:
    """A second name for the same bytes: killed now, the next run still finds the first."""
    target.unlink(missing_ok=True)
    try:
        os.link(data, target)
    except OSError:  # a file system without links
        shutil.copyfile(data, target)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
