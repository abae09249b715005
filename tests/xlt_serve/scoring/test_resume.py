"""Killed at any moment, the same command goes on, and nobody sees from the output that it was."""

from __future__ import annotations

import errno
import importlib.metadata
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.xlt_serve.scoring.fakes import Fake, opening
from tests.xlt_serve.scoring.test_formats import read, write
from xlt_serve.errors import DataError, UsageError, XltError
from xlt_serve.files.window import Position
from xlt_serve.scoring import Order, journal, score
from xlt_serve.scoring.counts import Counts, Progress, bar, line
from xlt_serve.scoring.journal import Journal, Place

CHILD = """
import sys
from tests.xlt_serve.scoring.fakes import opening
from xlt_serve.errors import XltError
from xlt_serve.scoring import Order, answered, journal, score
journal.EVERY = answered.PATIENCE = 0.0
source, out, bundle, *window = sys.argv[1:]
order = Order(source, out, bundle, window=int(*window or [25]))
try:
    score(order, open_predictor=opening(seconds=0.002))
except XltError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def rows(count: int) -> list[dict[str, str]]:
    return [
        {"id": str(n), "text": f"the goal {'of ours ' * (n * 13 % 40)}{n}"} for n in range(count)
    ]


def child(
    source: Path, out: Path, bundle: Path, window: int = 25, **options: Any
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", CHILD, str(source), str(out), str(bundle), str(window)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, **options)


def killed_until_done(
    source: Path, out: Path, bundle: Path, seed: int, kills: int, window: int = 25
) -> int:
    """Start, kill after a random time, start again …; how many kills hit a run that was not done."""
    generator = random.Random(seed)
    hits = 0
    for _ in range(kills):
        process = child(source, out, bundle, window)
        begun = time.monotonic()
        # Loading takes most of the time: wait for the first sign of work, then for a random moment.
        while process.poll() is None and not Path(f"{out}.partial").exists():
            time.sleep(0.002)
            assert time.monotonic() - begun < 60
        time.sleep(generator.random() * 0.12)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        hits += not out.exists()
    last = child(source, out, bundle, window)
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0, said
    return hits


@pytest.mark.parametrize(
    "names", [("i.csv", "o.jsonl.gz"), ("i.parquet", "o.parquet"), ("in", "out/")]
)
def test_a_killed_run_leaves_no_trace(bundle: Path, tmp_path: Path, names: tuple[str, str]) -> None:
    given, wanted = names
    source = tmp_path / given
    if given == "in":
        source.mkdir()
        for part in range(4):
            write(source / f"{part}.jsonl.gz", rows(150))
    else:
        write(source, rows(600))
    whole, out = tmp_path / f"whole-{wanted}", tmp_path / wanted
    score(
        Order(str(source), str(whole) + "/" * wanted.endswith("/"), str(bundle), window=25),
        open_predictor=opening(),
    )
    if wanted.endswith("/"):
        killed_until_done(source, Path(f"{out}.d"), bundle, seed=1, kills=2)
        made = {p.name: p.read_bytes() for p in Path(f"{out}.d").iterdir()}
        assert made == {p.name: p.read_bytes() for p in whole.iterdir()}
    else:
        killed_until_done(source, out, bundle, seed=2, kills=2)
        assert out.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.slow
def test_twenty_random_kills(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "i.csv", rows(5000))
    score(
        Order(str(source), str(tmp_path / "whole.csv"), str(bundle), window=25),
        open_predictor=opening(),
    )
    hits = killed_until_done(source, tmp_path / "o.csv", bundle, seed=3, kills=20)
    assert hits >= 10  # else the test says little
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("out", "window"), [("o.jsonl", 25), ("o.parquet", 1500)])
def test_random_kills_among_repeated_texts(
    bundle: Path, tmp_path: Path, out: str, window: int
) -> None:
    """Texts that came before, windows that take long: no row is lost, doubled or different."""
    texts = [f"the goal {'of ours ' * (n % 7)}{n * n % 2000}" for n in range(6000)]
    given = [{"id": str(n), "text": text} for n, text in enumerate(texts)]
    source = write(tmp_path / "i.jsonl", given)
    whole = Order(str(source), str(tmp_path / f"whole-{out}"), str(bundle), window=window)
    score(whole, open_predictor=opening())
    hits = killed_until_done(source, tmp_path / out, bundle, seed=4, kills=25, window=window)
    assert hits >= 5  # else the test says little
    found, wanted = read(tmp_path / out), read(tmp_path / f"whole-{out}")
    assert [row["id"] for row in found] == [row["id"] for row in given]
    assert found == wanted
    assert (tmp_path / out).read_bytes() == (tmp_path / f"whole-{out}").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


class Stop(Exception):
    pass


def stop(*_: object) -> None:
    raise Stop


def interrupted(order: Order, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies in the middle of writing its ``after``-th window, half of it on the disk."""
    real = Journal.append
    calls = 0

    def append(self: Journal, unit: int, data: bytes, place: Place, counts: Counts) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            with self.data(unit).open("ab") as handle:
                handle.write(data[: len(data) // 2])
            raise Stop
        real(self, unit, data, place, counts)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", append)
        patched.setattr(journal, "EVERY", 0.0)
        with pytest.raises(Stop):
            score(order, open_predictor=opening())


@pytest.mark.parametrize("out", ["o.csv", "o.tsv.bz2", "o.jsonl.zst", "o.parquet"])
def test_every_window_can_be_the_last(
    bundle: Path, tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(write(tmp_path / "i.jsonl.gz", rows(60)))
    order = Order(source, str(tmp_path / out), str(bundle), window=10)
    whole = Order(source, str(tmp_path / f"whole-{out}"), str(bundle), window=10)
    score(whole, open_predictor=opening())
    for after in (0, 2, 5):
        interrupted(order, after, monkeypatch)
        assert not (tmp_path / out).exists()
        for file in (tmp_path / f"{out}.partial").glob("answers-*"):
            file.unlink()  # as an earlier version left it, which kept no answers beside the rows
        done: list[Fake] = []

        def remember(found: Any, _: Order, done: list[Fake] = done) -> Fake:
            done.append(Fake(found.manifest.labels))
            return done[-1]

        summary = score(order, open_predictor=remember)
        assert summary.counts.rows == 60
        assert (tmp_path / out).read_bytes() == (tmp_path / f"whole-{out}").read_bytes()
        scored = sum(map(len, done[0].batches))
        assert scored == 60 - 10 * after  # what was committed is not scored again
        (tmp_path / out).unlink()
        (tmp_path / f"{out}.score.json").unlink()


@pytest.mark.parametrize("left", ["all", "lock"])
def test_what_a_kill_after_the_last_rename_left_goes(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    order = Order(str(write(tmp_path / "i.csv", rows(60))), str(tmp_path / "o.csv"), str(bundle))
    work = tmp_path / "o.csv.partial"

    def die(self: Journal) -> None:
        if left == "lock":
            self.clear()
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", die)
        with pytest.raises(Stop):
            score(order, open_predictor=opening())
    # A kill leaves the lock, which nobody holds.
    work.mkdir(exist_ok=True)
    (work / "lock").touch()
    made = (tmp_path / "o.csv").read_bytes()
    assert score(order, open_predictor=opening()).counts.rows == 60
    assert not work.exists()
    assert (tmp_path / "o.csv").read_bytes() == made


def test_what_is_not_ours_stays_beside_a_whole_output(bundle: Path, tmp_path: Path) -> None:
    order = Order(str(write(tmp_path / "i.csv", rows(60))), str(tmp_path / "o.csv"), str(bundle))
    score(order, open_predictor=opening())
    work = tmp_path / "o.csv.partial"
    work.mkdir()
    for name in ("lock", "final", "notes"):
        (work / name).write_text("mine")
    assert score(order, open_predictor=opening()).counts.rows == 60
    assert {file.name: file.read_text() for file in work.iterdir()} == dict.fromkeys(
        ("lock", "final", "notes"), "mine"
    )


def test_what_changed_is_named(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "i.csv", rows(60))
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), window=10)
    interrupted(order, 3, monkeypatch)
    other = tmp_path / "other"
    shutil.copytree(bundle, other)
    about = json.loads((other / "bundle.json").read_text())
    from xlt_serve.bundle import content_version

    about["notes"] = "another"
    about["version"] = content_version(about)
    (other / "bundle.json").write_text(json.dumps(about))
    from dataclasses import replace

    for changed, says in (
        (replace(order, window=11), r"window \(10 before, 11 now\)"),
        (replace(order, settings={"top_k": 1}), "top_k"),
        (replace(order, bundle=str(other)), "bundle .*before"),
        (replace(order, prefix="p_"), "prefix"),
    ):
        with pytest.raises(UsageError, match=f"was begun with something else: {says}.*--overwrite"):
            score(changed, open_predictor=opening())
    original = source.read_bytes()
    stat = source.stat()
    source.write_bytes(original[:-2] + b"X\n")
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size, same time
    with pytest.raises(UsageError, match=r"input i\.csv"):
        score(order, open_predictor=opening())
    source.write_bytes(original)
    assert score(order, open_predictor=opening()).counts.rows == 60
    assert score(order, open_predictor=opening()).said == ""  # done is done
    with pytest.raises(UsageError, match="is there already"):
        score(replace(order, window=11), open_predictor=opening())
    again = score(replace(order, window=11, overwrite=True), open_predictor=opening())
    assert again.said
    assert not list(tmp_path.glob("*.partial"))


def test_a_vanished_input_loses_nothing(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for part in range(3):
        write(folder / f"{part}.csv", rows(20))
    order = Order(str(folder), str(tmp_path / "o.csv"), str(bundle), window=10)
    whole = Order(str(folder), str(tmp_path / "whole.csv"), str(bundle), window=10)
    score(whole, open_predictor=opening())

    def vanishing(found: Any, _: Order) -> Fake:
        (folder / "2.csv").rename(tmp_path / "away.csv")
        return Fake(found.manifest.labels)

    with pytest.raises(DataError, match=r"2\.csv: is not there"):
        score(order, open_predictor=vanishing)
    assert not (tmp_path / "o.csv").exists()
    with pytest.raises(UsageError, match=r"input 2\.csv"):
        score(order, open_predictor=opening())
    (tmp_path / "away.csv").rename(folder / "2.csv")
    score(order, open_predictor=opening())
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_an_input_that_is_written_to_meanwhile_is_refused(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "i.csv", rows(20))

    def changing(found: Any, _: Order) -> Fake:
        with source.open("a") as handle:
            handle.write("99,late\n")
        return Fake(found.manifest.labels)

    with pytest.raises(DataError, match="changed while it was read"):
        score(Order(str(source), str(tmp_path / "o.csv"), str(bundle)), open_predictor=changing)
    assert not (tmp_path / "o.csv").exists()


def test_a_full_disk_loses_nothing(bundle: Path, tmp_path: Path) -> None:
    """The kernel's own refusal: a limit on the size of files stands in for the end of the disk."""
    source = write(tmp_path / "i.csv", rows(600))
    out = tmp_path / "o.csv"
    score(
        Order(str(source), str(tmp_path / "whole.csv"), str(bundle), window=25),
        open_predictor=opening(),
    )
    limit = (tmp_path / "whole.csv").stat().st_size // 2

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = child(source, out, bundle, preexec_fn=limited)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"DataError: " in said
    assert b"File too large" in said
    assert b"what was scored is kept" in said
    assert not out.exists()
    entries = (tmp_path / "o.csv.partial" / "journal.jsonl").read_text().splitlines()
    kept = sum(json.loads(entry)["counts"]["rows"] for entry in entries)
    assert kept >= 200
    process = child(source, out, bundle)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_pipe_is_read_again_and_compared(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write(tmp_path / "i.csv", rows(60)).read_bytes()
    order = Order("-", str(tmp_path / "o.csv"), str(bundle), in_format="csv", window=10)
    score(
        Order(str(tmp_path / "i.csv"), str(tmp_path / "whole.csv"), str(bundle), window=10),
        open_predictor=opening(),
    )

    def feed(data: bytes) -> None:
        (tmp_path / "pipe").write_bytes(data)
        stream = (tmp_path / "pipe").open()
        monkeypatch.setattr(sys, "stdin", stream)

    feed(content)
    interrupted(order, 3, monkeypatch)
    sys.stdin.close()
    feed(content.replace(b"0,the goal 0", b"0,the goal 9"))
    with pytest.raises(UsageError, match="does not give the same rows again"):
        score(order, open_predictor=opening())
    sys.stdin.close()
    feed(content)
    assert score(order, open_predictor=opening()).counts.rows == 60
    sys.stdin.close()
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize("out", ["o.csv", "o.parquet", "o.jsonl"])
@pytest.mark.parametrize("where", [0, 3, "at the end"])
def test_a_pipe_has_the_columns_of_its_first_rows_to_the_end(
    bundle: Path, tmp_path: Path, out: str, where: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later rows may have others, or their own in another order."""
    lines = [{"id": n, "text": f"the goal {n}", "extra": "x"} for n in range(20)]
    lines += [{"text": f"the goal {n}", "id": n} for n in range(20, 60)]
    content = "".join(json.dumps(line) + "\n" for line in lines)

    def feed() -> None:
        (tmp_path / "pipe").write_text(content)
        monkeypatch.setattr(sys, "stdin", (tmp_path / "pipe").open())

    def order(name: str) -> Order:
        return Order("-", str(tmp_path / name), str(bundle), in_format="jsonl", window=10)

    feed()
    score(order(f"whole-{out}"), open_predictor=opening())
    sys.stdin.close()
    feed()
    if isinstance(where, int):
        interrupted(order(out), where, monkeypatch)
    else:
        with monkeypatch.context() as patched:
            patched.setattr("xlt_serve.scoring.publish.finish", stop)
            with pytest.raises(Stop):
                score(order(out), open_predictor=opening())
    sys.stdin.close()
    feed()
    assert score(order(out), open_predictor=opening()).counts.rows == 60
    sys.stdin.close()
    assert (tmp_path / out).read_bytes() == (tmp_path / f"whole-{out}").read_bytes()


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_an_empty_file_of_a_folder_is_no_obstacle(
    bundle: Path, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "0.jsonl", rows(20))
    (tmp_path / "in" / "1.jsonl").touch()
    write(tmp_path / "in" / "2.jsonl", rows(20))
    orders = [
        Order(
            str(tmp_path / "in"), f"{tmp_path}/{name}/", str(bundle), window=10, out_format=format
        )
        for name in ("whole", "out")
    ]
    score(orders[0], open_predictor=opening())
    interrupted(orders[1], 4, monkeypatch)
    score(orders[1], open_predictor=opening())
    whole, out = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        for name in ("whole", "out")
    )
    assert sorted(out) == [f"{n}.{format}" for n in range(3)]
    assert out == whole


def test_what_the_translations_depend_on_may_not_change(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, table = tmp_path / "engines.toml", tmp_path / "table.tsv"
    config.write_text('[engine.table]\nkind = "recorded"\nfile = "table.tsv"\n')
    table.write_text("source\ttarget\ttext\ttranslation\nde\ten\tTor\tgoal\n")
    source = str(write(tmp_path / "i.csv", rows(60)))
    order = Order(source, str(tmp_path / "o.csv"), str(bundle), window=10, translators=str(config))
    interrupted(order, 3, monkeypatch)
    with pytest.raises(UsageError, match=r"begun with something else: in-format"):
        score(replace(order, in_format="txt"), open_predictor=opening())
    table.write_text(table.read_text().replace("goal", "gate"))
    with pytest.raises(UsageError, match=r"begun with something else: translators"):
        score(order, open_predictor=opening())
    config.write_text("engine = [")
    with pytest.raises(UsageError, match="is not TOML"):
        score(order, open_predictor=opening())


@pytest.mark.parametrize("folder", [False, True])
def test_work_on_another_file_system(
    bundle: Path, tmp_path: Path, folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rename leads from one to the other, and OUT is still whole or not there."""
    source = write(tmp_path / "i.csv", rows(20))
    if folder:
        source = tmp_path / "in"
        (source / "lang=de").mkdir(parents=True)
        write(source / "lang=de" / "part.csv", rows(20))
    out, work = tmp_path / ("out" if folder else "o.csv"), tmp_path / "work"
    given = f"{out}/" if folder else str(out)
    order = Order(str(source), given, str(bundle), work=str(work), overwrite=True)
    real = Path.replace

    def across(self: Path, target: Path) -> Path:
        if self.is_relative_to(work) != Path(target).is_relative_to(work):
            raise OSError(errno.EXDEV, "Invalid cross-device link", str(self))
        return real(self, target)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def found() -> dict[str, bytes]:
        files = (
            [out] if out.is_file() else sorted(file for file in out.rglob("*") if file.is_file())
        )
        return {file.relative_to(tmp_path).as_posix(): file.read_bytes() for file in files}

    score(Order(str(source), given, str(bundle)), open_predictor=opening())
    whole = found()
    assert whole
    (tmp_path / f"{out.name}.score.json").unlink()
    if folder:
        (out / "old.csv").write_text("old")
    else:
        out.write_text("old")
    before = found()
    # In a folder what is not ours stays.
    whole |= {"out/old.csv": b"old"} if folder else {}
    monkeypatch.setattr(Path, "replace", across)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(DataError, match="what was scored is kept"):
            score(order, open_predictor=opening())
    assert found() == before  # nothing was taken away before there was something better
    assert not list(tmp_path.rglob("*half"))
    target = out / "lang=de" / "part.csv" if folder else out
    target.with_name(f".{target.name}.xlt-half").write_text("of a run killed while it copied")
    score(order, open_predictor=opening())
    assert found() == whole
    assert not list(work.iterdir())
    assert not list(tmp_path.rglob("*half"))
    assert score(order, open_predictor=opening()).said == ""  # done is done


def test_what_the_numbers_depend_on_is_told(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "i.csv", rows(60))
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), window=10)
    interrupted(order, 3, monkeypatch)
    real = importlib.metadata.version
    for package in ("onnxruntime", "tokenizers"):
        with monkeypatch.context() as patched:
            patched.setattr(
                importlib.metadata, "version", lambda n, p=package: "0.1" if n == p else real(n)
            )
            with pytest.raises(UsageError, match=rf"{package} \({real(package)} before, 0.1 now\)"):
                score(order, open_predictor=opening())
    assert score(order, open_predictor=opening()).counts.rows == 60


def test_scoring_from_source_without_installation(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    source = write(tmp_path / "i.csv", rows(20))
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle))
    assert score(order, open_predictor=opening()).counts.rows == 20
    told = json.loads((tmp_path / "o.csv.score.json").read_text())["order"]
    assert (told["xlt-serve"], told["onnxruntime"]) == ("source", None)


def test_two_runs_on_one_output_are_refused(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "i.csv", rows(20))
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle))
    with (
        Journal(tmp_path / "o.csv.partial").locked(),
        pytest.raises(UsageError, match="another run"),
    ):
        score(order, open_predictor=opening())
    assert score(order, open_predictor=opening()).counts.rows == 20


@pytest.mark.parametrize("damage", ["torn line", "lost bytes", "altered bytes"])
def test_the_journal_trusts_only_what_it_can_check(tmp_path: Path, damage: str) -> None:
    book = Journal(tmp_path / "work")
    with book.locked():
        for number in range(4):
            place = Place(0, 0, Position(10 * (number + 1), number + 1))
            book.append(0, bytes([65 + number]) * 10, place, Counts(rows=1))
            book.commit(place)
    log, data = tmp_path / "work" / "journal.jsonl", book.data(0)
    lines = len(log.read_bytes().splitlines())
    if damage == "torn line":
        os.truncate(log, log.stat().st_size - 5)
    elif damage == "lost bytes":
        os.truncate(data, 35)
    else:
        data.write_bytes(data.read_bytes()[:31] + b"?" * 9)
    with book.locked():
        found = book.recover()
    assert lines >= 4
    assert found.place.position == Position(30, 3)
    assert found.counts.rows == 3
    assert data.read_bytes() == b"A" * 10 + b"B" * 10 + b"C" * 10


def test_progress_says_how_fast_and_how_long() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    now = iter([0.0, 10.0, 20.0])
    stream = Terminal()
    progress = Progress(Counts(rows=100), stream, clock=lambda: next(now))
    new = Counts(rows=50, tokens=1000, errors=1, languages=Counter({"de": 49}))
    progress.update(new, 0.5)
    progress.update(new, 0.75)
    shown = stream.getvalue().split("\r")
    # Its own 100 rows in 20 s; a quarter took it the last ten seconds, and a quarter is left.
    wanted = " 75% 200 rows · 5 rows/s · 100 tokens/s · ETA 0:10 · 2 errors · de 98"
    assert shown[-1] == f"{bar(0.75)} {wanted}\x1b[K"
    assert "0 rows/s" in line(Counts(rows=5), Counts(rows=5), 0, 3661)
    assert "ETA 1:01:01" in line(Counts(rows=5), Counts(rows=5), 0, 3661)
    assert bar(0.5, 4) == "██  "
    assert bar(1, 4) == "████"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "txt"])
def test_the_command_in_a_pipe(tmp_path: Path, kind: str) -> None:
    """The shipped bundle, as a user calls it."""
    lines = {
        "csv": 'text,n\nDas Spiel endete unentschieden.,1\n"",2\n',
        "jsonl": '{"text": "Das Spiel endete unentschieden.", "n": 1}\n{"text": "", "n": 2}\n',
        "txt": "Das Spiel endete unentschieden.\n\n",
    }
    command = [
        sys.executable,
        "-m",
        "xlt_serve.cli",
        "score",
        "-",
        "-",
        "--in-format",
        kind,
        "--out-format",
        "jsonl",
    ]
    done = subprocess.run(
        command,
        input=lines[kind],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["xlt_label"] == "sports"
    assert first["xlt_language"] == "de"
    assert second["xlt_error"]["code"] == "empty"
    assert "2 rows" in done.stderr


def test_errors_of_ours_have_exit_codes(tmp_path: Path) -> None:
    from xlt_serve.cli.main import main

    assert main(["score", str(tmp_path / "none.csv"), str(tmp_path / "o.csv")]) == 1
    (tmp_path / "i.csv").write_text("text\nx\n")
    assert main(["score", str(tmp_path / "i.csv"), str(tmp_path / "o.csv"), "--top-k", "0"]) == 2
    assert main(["score", str(tmp_path / "i.csv"), "/proc/none/o.csv", "--quiet"]) == 2
    assert issubclass(UsageError, XltError)
