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
from pathlib import Path
from typing import Any

from xlt_serve.bundle import digest
from xlt_serve.errors import UsageError
from xlt_serve.files import places
from xlt_serve.files.places import PIPE
from xlt_serve.scoring import staging
from xlt_serve.scoring.counts import Counts
from xlt_serve.scoring.journal import Journal, explained, write_whole
from xlt_serve.scoring.order import RECEIPT, Layout, Order, output_name, targets
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


def finished_before(order: Order, layout: Layout, wanted: dict[str, Any]) -> Counts | None:
    """Counts of a finished output that this very order made. Another output in its place is refused,
    and so is what can't be replaced by a file of ours."""
    name = output_name(order.out)
    _refuse_wrong_kind(order.out, name, layout)
    _refuse_work(order, layout)
    receipt = _receipt(name + RECEIPT)
    if receipt and order.source != PIPE and receipt["order"] == wanted:
        with contextlib.suppress(FileNotFoundError):
            if receipt["output"] == _identity(name, layout):
                return Counts.of(receipt["counts"])
    if order.overwrite or (work_folder(order) / "receipt.json").exists():
        return None
    if places.exists(name) and not places.is_empty_folder(name):
        raise UsageError(order.out, "is there already", _remedy(layout))
    if receipt is None and places.exists(name + RECEIPT):
        raise UsageError(
            name + RECEIPT,
            "is there already and no receipt of ours",
            "move it away, or give --overwrite",
        )
    return None


def finish(
    order: Order,
    layout: Layout,
    journal: Journal,
    writers: list[Writer],
    wanted: dict[str, Any],
    counts: Counts,
) -> None:
    """The whole output under ``final`` in the work folder, and its receipt."""
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
    receipt = {"order": wanted, "output": output, "counts": counts.to_dict()}
    write_whole(
        journal.folder / "receipt.json", json.dumps(receipt, indent=1, ensure_ascii=False).encode()
    )


def publish(order: Order, layout: Layout, journal: Journal) -> Counts:
    """By renames, copies or uploads; may be done again if it was killed on the way."""
    final, file = journal.folder / "final", journal.folder / "receipt.json"
    receipt = json.loads(file.read_text(encoding="utf-8"))
    name = output_name(order.out)
    out = Path(name)
    _refuse_wrong_kind(order.out, name, layout)
    if not order.overwrite:
        _refuse_newcomers(order, layout, final)
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


def _remedy(layout: Layout) -> str:
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


def _refuse_newcomers(order: Order, layout: Layout, final: Path) -> None:
    """What took the output's name while we scored was not there to be refused at the beginning. What
    is as we made it was put there by this run, before it was killed."""
    receipt = output_name(order.out) + RECEIPT
    late = [receipt] if places.exists(receipt) and _receipt(receipt) is None else []
    for made, there in zip(_made(final, layout), targets(order, layout), strict=True):
        if made.exists() and places.exists(there) and places.digest_of(there) != digest(made):
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
