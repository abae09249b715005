"""What is refused, or fails before its first rows are answered, leaves everything as it was."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.xlt_serve.scoring.fakes import Fake, opening
from tests.xlt_serve.scoring.test_formats import read, write
from tests.xlt_serve.scoring.test_publish import ROWS, contents, refused
from tests.xlt_serve.scoring.test_resume import interrupted, rows
from xlt_serve.errors import DataError, UsageError, XltError
from xlt_serve.scoring import Order, cluster, score
from xlt_serve.scoring.counts import Counts
from xlt_serve.scoring.journal import Journal
from xlt_serve.scoring.order import layout


@pytest.fixture
def order(bundle: Path, tmp_path: Path) -> Order:
    source = write(tmp_path / "i.csv", rows(60))
    return Order(str(source), str(tmp_path / "deep" / "o.csv"), str(bundle), window=10)


def unopened(*_: Any) -> Fake:
    raise UsageError("the bundle", "can't be opened")


def unanswered(found: Any, _: Order) -> Fake:
    class Failing(Fake):
        def predict(self, items: object, **settings: object) -> Any:
            raise UsageError("the first row", "can't be answered")

    return Failing(found.manifest.labels)


@pytest.mark.parametrize("failing", [unopened, unanswered])
def test_a_failed_start_claims_nothing(order: Order, tmp_path: Path, failing: Any) -> None:
    with pytest.raises(UsageError, match=r"can't be (opened|answered)"):
        score(order, open_predictor=failing)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["i.csv"]
    assert score(replace(order, prefix="p_"), open_predictor=opening()).counts.rows == 60


@pytest.mark.parametrize("failing", [unopened, unanswered, opening()])
def test_a_failed_start_keeps_what_another_order_left(
    order: Order, tmp_path: Path, failing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(order, 3, monkeypatch)
    left = contents(tmp_path)
    other = replace(order, prefix="p_", overwrite=True)
    if failing not in (unopened, unanswered):  # a bad first row, where none may be
        source = Path(order.source)
        bad = source.with_name("bad.csv")
        bad.write_text("id,text\n0,\n1,good\n")
        other = replace(other, source=str(bad), strict=True)
        left["bad.csv"] = bad.read_text()
    with pytest.raises(XltError):
        score(other, open_predictor=failing)
    assert contents(tmp_path) == left
    for file in Path(f"{order.out}.partial").glob("answers-*"):
        file.unlink()  # else even less runs again
    done: list[Fake] = []

    def remember(found: Any, _: Order) -> Fake:
        done.append(Fake(found.manifest.labels))
        return done[-1]

    score(order, open_predictor=remember)
    assert sum(map(len, done[0].batches)) == 30  # the other half was kept


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_mode_that_the_bundle_lacks_is_refused_first(
    order: Order, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(order, 3, monkeypatch)
    left = contents(tmp_path)
    unfit = replace(order, settings={"mode": "paired"}, overwrite=True, engine=engine)
    refused(unfit, "mode=paired on topics")
    assert contents(tmp_path) == left


def test_ray_claims_nothing_before_it_runs(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> None:
        raise DataError("ray", "can't be imported")

    interrupted(order, 3, monkeypatch)
    left = contents(tmp_path)
    monkeypatch.setattr(cluster, "needed", missing)
    with pytest.raises(DataError, match="ray"):
        score(replace(order, engine="ray", overwrite=True))
    assert contents(tmp_path) == left


def test_ray_leaves_nothing_where_most_rows_fail(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first part, of which most rows have errors, is there before anybody can look at it."""

    def failing(*given: Any) -> None:
        *_, folder, progress, watch = given
        (folder / "parts").mkdir()
        (folder / "parts" / "0000000.json").write_text("{}")
        progress.update(Counts(rows=10, errors=6), 0.1)
        watch.add(Counts(rows=10, errors=6, kinds=Counter(empty=6)))

    before = contents(tmp_path)
    monkeypatch.setattr(cluster, "start", lambda: None)
    monkeypatch.setattr(cluster, "run", failing)
    with pytest.raises(DataError, match=r"6 of the first 10 rows: have errors \(empty 6\)"):
        score(replace(order, engine="ray"))
    assert contents(tmp_path) == before


def test_an_actor_that_does_not_see_the_work_says_so(order: Order, tmp_path: Path) -> None:
    sources = [unit.sources for unit in layout(order).units]
    parts = tmp_path / "parts"
    with pytest.raises(UsageError, match=r"is not seen on .*--work DIR"):
        cluster.refuse_unshared(parts, sources, str(order.bundle))
    parts.mkdir()
    (parts / cluster.SIGN).touch()
    cluster.refuse_unshared(parts, sources, str(order.bundle))
    Path(str(order.source)).unlink()
    with pytest.raises(UsageError, match=r"i\.csv: is not seen on .*URL"):
        cluster.refuse_unshared(parts, sources, str(order.bundle))


def test_a_run_without_a_committed_row_holds_no_name(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: there is nothing to lose, so nothing to be asked for."""
    interrupted(order, 0, monkeypatch)
    assert Path(f"{order.out}.partial", "run.json").exists()
    assert score(replace(order, prefix="p_"), open_predictor=opening()).counts.rows == 60


@pytest.mark.parametrize(
    "name", ["parts/mine", "final", "lock", "run.json", "receipt.json", "unit-00000.data"]
)
def test_files_of_others_with_names_of_ours_stay(order: Order, name: str) -> None:
    theirs = Path(f"{order.out}.partial") / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"their": "own"}')
    entry = name.split("/")[0]
    refused(replace(order, overwrite=True), rf"o\.csv\.partial/{entry}: is .*no run of ours; move")
    assert theirs.read_text() == '{"their": "own"}'
    assert [file.name for file in Path(f"{order.out}.partial").iterdir()] == [entry]


def test_a_file_in_the_place_of_the_work_folder_stays(order: Order) -> None:
    work = Path(f"{order.out}.partial")
    work.parent.mkdir()
    work.write_text("theirs")
    refused(replace(order, overwrite=True), r"o\.csv\.partial: is a file")
    assert work.read_text() == "theirs"


def test_a_recovered_run_leaves_files_of_similar_names(
    order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(order, 3, monkeypatch)
    work = Path(f"{order.out}.partial")
    for name in ("unit-1-mine.data", "unit-mine.data"):
        (work / name).write_text("theirs")
    score(order, open_predictor=opening())
    assert contents(work) == {"unit-1-mine.data": "theirs", "unit-mine.data": "theirs"}


def test_a_lock_that_was_removed_locks_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that held it ended between our opening and our locking."""
    import fcntl

    real = fcntl.flock

    def late(handle: Any, how: int) -> None:
        (tmp_path / "work" / "lock").unlink()
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(UsageError, match="another run"), Journal(tmp_path / "work").locked():
        pass


def test_a_pattern_that_goes_back_is_refused(bundle: Path, tmp_path: Path) -> None:
    """Its names would lead out of the output's folder."""
    (tmp_path / "in" / "x").mkdir(parents=True)
    source = write(tmp_path / "t.csv", ROWS)
    (tmp_path / "o").mkdir()
    before = source.read_bytes()
    theirs = write(tmp_path / "o" / "t.csv", ROWS[:1]).read_bytes()
    order = Order(f"{tmp_path}/in/*/../../t.csv", f"{tmp_path}/o/out/", str(bundle), overwrite=True)
    with pytest.raises(DataError, match=r"\.\."):
        score(order, open_predictor=opening())
    assert source.read_bytes() == before
    assert (tmp_path / "o" / "t.csv").read_bytes() == theirs


def test_outputs_that_links_bring_together_are_refused(bundle: Path, tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / "in" / name).mkdir(parents=True)
        write(tmp_path / "in" / name / "a.csv", ROWS)
    (tmp_path / "out" / "y").mkdir(parents=True)
    (tmp_path / "out" / "x").symlink_to("y")
    order = Order(f"{tmp_path}/in", f"{tmp_path}/out/", str(bundle), overwrite=True)
    refused(order, r"out/x/a\.csv and .*out/y/a\.csv: are one file")
    assert not list((tmp_path / "out" / "y").iterdir())


@pytest.mark.parametrize("given", ["translators", "tables"])
def test_no_other_file_that_is_read_is_replaced(bundle: Path, tmp_path: Path, given: str) -> None:
    source = write(tmp_path / "i.csv", ROWS)
    file = tmp_path / "mine.tsv"
    file.write_text("theirs")
    value: Any = str(file) if given == "translators" else {"de": str(file)}
    order = Order(str(source), str(file), str(bundle), overwrite=True)
    refused(replace(order, **{given: value}), "mine.tsv: is the input itself")
    assert file.read_text() == "theirs"


def test_a_link_that_leads_nowhere_is_not_replaced(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "i.csv", ROWS)
    (tmp_path / "o.csv").symlink_to("nowhere")
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle))
    refused(order, "is there already")
    assert (tmp_path / "o.csv").readlink() == Path("nowhere")
    (tmp_path / "o.csv").rename(tmp_path / "o.csv.score.json")
    refused(order, "no receipt of ours")
    (tmp_path / "o.csv.score.json").unlink()
    (tmp_path / "o.csv.score.json").mkdir()
    refused(replace(order, overwrite=True), r"score\.json: is a folder")


@pytest.mark.parametrize("late", ["o.csv", "o.csv.score.json"])
@pytest.mark.parametrize("scheme", ["", "memory://"])
def test_nothing_that_appears_meanwhile_is_replaced(
    bundle: Path, tmp_path: Path, late: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = f"{scheme}{tmp_path}"
    fs = fsspec.filesystem("memory" if scheme else "file")
    fs.makedirs(str(tmp_path), exist_ok=True)
    file = f"{tmp_path}/{late}"

    def meanwhile(found: Any, _: Order) -> Fake:
        fs.pipe_file(file, b"theirs")
        return Fake(found.manifest.labels)

    source = write(tmp_path / "i.csv", ROWS)
    order = Order(str(source), f"{root}/o.csv", str(bundle))
    for opener in (meanwhile, lambda *_: pytest.fail("scored twice")):
        with pytest.raises(UsageError, match=r"put there while this ran.*what was scored is kept"):
            score(order, open_predictor=opener)
        assert fs.cat_file(file) == b"theirs"
        assert not fs.exists(f"{tmp_path}/o.csv") or late == "o.csv"
    score(replace(order, overwrite=True), open_predictor=lambda *_: pytest.fail("scored twice"))
    assert fs.cat_file(file) != b"theirs"


def test_an_upload_that_broke_off_goes_on(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it uploaded before is its own."""
    import fsspec

    from xlt_serve.files import places

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    for name in ("a.csv", "b.csv"):
        write(tmp_path / "in" / name, ROWS)
    order = Order(str(tmp_path / "in"), "memory://broken/out/", str(bundle))
    real = places.upload

    def breaking(file: Path, place: str) -> None:
        if place.endswith("b.csv"):
            raise DataError(place, "is away")
        real(file, place)

    with monkeypatch.context() as patched:
        patched.setattr(places, "upload", breaking)
        with pytest.raises(DataError, match="is away"):
            score(order, open_predictor=opening())
    score(order, open_predictor=lambda *_: pytest.fail("scored twice"))
    memory = fsspec.filesystem("memory")
    assert memory.cat_file("/broken/out/a.csv") == memory.cat_file("/broken/out/b.csv")


def test_a_neighbour_of_the_receipt_stays(bundle: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "i.csv", ROWS)
    half = tmp_path / "o.csv.score.json.half"
    half.write_text("theirs")
    score(Order(str(source), str(tmp_path / "o.csv"), str(bundle)), open_predictor=opening())
    assert half.read_text() == "theirs"
    assert len(read(tmp_path / "o.csv")) == 4
