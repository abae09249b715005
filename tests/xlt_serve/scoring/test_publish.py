"""What lies where the output goes: replaced is what this run writes, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.xlt_serve.scoring.fakes import Fake, opening
from tests.xlt_serve.scoring.test_formats import read, write
from xlt_serve.errors import UsageError
from xlt_serve.scoring import Order, score

ROWS = [{"id": str(n), "text": f"the goal {n}"} for n in range(4)]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder with two files to score."""
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    write(folder / "a.csv", ROWS)
    write(folder / "sub" / "b.csv", ROWS[:2])
    return folder


def contents(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_text() for file in files}


def refused(order: Order, says: str) -> None:
    """Before a model is opened, and with every file as it was."""

    def never(*_: Any) -> Fake:
        raise AssertionError("the run began")

    with pytest.raises(UsageError, match=says):
        score(order, open_predictor=never)


def test_overwrite_replaces_only_the_files_that_it_writes(
    bundle: Path, tmp_path: Path, given: Path
) -> None:
    out = tmp_path / "out"
    score(Order(str(given), f"{out}/", str(bundle)), open_predictor=opening())
    whole = contents(out)
    (out / "sub" / "theirs.csv").write_text("theirs")
    (out / "notes.txt").write_text("theirs")
    (out / "a.csv").write_text("old")
    order = Order(str(given), f"{out}/", str(bundle))
    refused(order, "is there already; .*--overwrite.* no others")
    score(replace(order, overwrite=True), open_predictor=opening())
    assert contents(out) == whole | {"sub/theirs.csv": "theirs", "notes.txt": "theirs"}
    assert score(order, open_predictor=opening()).said == ""  # done, whatever else lies there
    assert not list(tmp_path.glob("*.partial"))


def test_another_input_leaves_the_files_of_the_first(
    bundle: Path, tmp_path: Path, given: Path
) -> None:
    out = tmp_path / "out"
    score(Order(str(given), f"{out}/", str(bundle)), open_predictor=opening())
    first = contents(out)
    other = tmp_path / "other"
    other.mkdir()
    write(other / "c.csv", ROWS)
    order = Order(str(other), f"{out}/", str(bundle))
    refused(order, "is there already")
    score(replace(order, overwrite=True), open_predictor=opening())
    found = contents(out)
    assert found.pop("c.csv")
    assert found == first


@pytest.mark.parametrize("linked", [False, True])
def test_an_empty_folder_is_no_obstacle(
    bundle: Path, tmp_path: Path, given: Path, linked: bool
) -> None:
    out = tmp_path / "out"
    if linked:
        (tmp_path / "elsewhere").mkdir()
        out.symlink_to("elsewhere")
    else:
        out.mkdir()
    score(Order(str(given), f"{out}/", str(bundle)), open_predictor=opening())
    assert sorted(contents(out)) == ["a.csv", "sub/b.csv"]
    assert out.is_symlink() == linked


def test_a_folder_that_is_a_link_keeps_what_it_holds(
    bundle: Path, tmp_path: Path, given: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs.csv").write_text("theirs")
    (tmp_path / "out").symlink_to("elsewhere")
    order = Order(str(given), f"{tmp_path}/out/", str(bundle), overwrite=True)
    score(order, open_predictor=opening())
    assert sorted(contents(tmp_path / "elsewhere")) == ["a.csv", "sub/b.csv", "theirs.csv"]
    assert (tmp_path / "out").is_symlink()


@pytest.mark.parametrize("out", [".", "./", "../here/", "other/.."])
def test_the_current_folder_keeps_its_files(
    bundle: Path, tmp_path: Path, given: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    (here / "other").mkdir(parents=True)
    (here / "theirs.csv").write_text("theirs")
    monkeypatch.chdir(here)
    score(Order(str(given), out, str(bundle), overwrite=True), open_predictor=opening())
    assert sorted(contents(here)) == ["a.csv", "sub/b.csv", "theirs.csv"]
    refused(Order(str(given), "/", str(bundle), overwrite=True), "is the root")


def test_a_folder_is_never_replaced_by_a_file_nor_a_file_by_a_folder(
    bundle: Path, tmp_path: Path, given: Path
) -> None:
    (tmp_path / "out.csv").mkdir()
    (tmp_path / "out.csv" / "theirs").write_text("theirs")
    order = Order(str(given / "a.csv"), str(tmp_path / "out.csv"), str(bundle), overwrite=True)
    refused(order, "out.csv: is a folder")
    (tmp_path / "file").write_text("theirs")
    order = Order(str(given), f"{tmp_path}/file/", str(bundle), overwrite=True)
    refused(order, "file/: is a file, and the output a folder")
    (tmp_path / "out" / "a.csv").mkdir(parents=True)
    order = replace(order, out=f"{tmp_path}/out/")
    refused(order, "out/a.csv: is a folder, and the output has a file there")
    (tmp_path / "out" / "a.csv").rmdir()
    (tmp_path / "out" / "sub").write_text("theirs")
    refused(order, "out/sub: is a file, and the output has a folder there")
    assert (tmp_path / "out" / "sub").read_text() == "theirs"
    assert (tmp_path / "out.csv" / "theirs").read_text() == "theirs"


@pytest.mark.parametrize(
    ("names", "out", "format", "target"),
    [
        (("a.csv", "a.csv.gz"), "out/", "parquet", "a.parquet"),
        (("x.jsonl", "x.ndjson"), "out/", "csv", "x.csv"),
        (("x.csv", "x.jsonl"), "out/", "parquet", None),  # of several formats: refused as before
    ],
)
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_two_inputs_with_one_output_are_refused(
    bundle: Path,
    tmp_path: Path,
    names: tuple[str, str],
    out: str,
    format: str,
    target: str | None,
    engine: str,
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names:
        write(folder / name, ROWS)
    order = Order(str(folder), f"{tmp_path}/{out}", str(bundle), out_format=format, engine=engine)
    if target is None:
        with pytest.raises(Exception, match="several formats"):
            score(order)
        return
    first, second = (str(folder / name) for name in names)
    refused(order, f"{first} and {second}: would both be written to {target}; rename one of them")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in"]
    together = replace(order, out=f"{tmp_path}/o.{format}", engine="local")
    assert score(together, open_predictor=opening()).counts.rows == 8
    assert len(read(tmp_path / f"o.{format}")) == 8


def test_a_file_and_a_folder_of_one_name_are_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "b.parquet").mkdir(parents=True)
    write(tmp_path / "in" / "b.parquet" / "part.jsonl", ROWS)
    write(tmp_path / "in" / "b.jsonl", ROWS)
    order = Order(str(tmp_path / "in"), f"{tmp_path}/out/", str(bundle), out_format="parquet")
    refused(order, r"b\.jsonl and .*part\.jsonl: would need b\.parquet as a file and as a folder")


def test_no_input_is_replaced(bundle: Path, tmp_path: Path, given: Path) -> None:
    before = contents(given)

    def order(source: str, out: str, **options: Any) -> Order:
        return Order(source, out, str(bundle), overwrite=True, **options)

    refused(order(f"{given}/*.csv", f"{given}/"), r"in/a\.csv: is the input itself")
    refused(order(f"file://{given}/a.csv", str(given / "a.csv")), "is the input itself")
    refused(order(str(given / "a.csv"), f"file://{given}/a.csv"), "is the input itself")
    refused(order(f"file://{given}", f"file://{given}/out/"), "lies within the input")
    (tmp_path / "link.csv").symlink_to(given / "a.csv")
    refused(order(str(given / "a.csv"), str(tmp_path / "link.csv")), "is the input itself")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sub").symlink_to(given / "sub")
    refused(order(str(given), f"{tmp_path}/out/"), r"sub/b\.csv: is the input itself")
    receipt = given / "o.csv.score.json"
    receipt.write_text('{"text": "x"}\n')
    refused(
        order(str(receipt), str(given / "o.csv"), in_format="jsonl"),
        r"o\.csv\.score\.json: is the input itself",
    )
    receipt.unlink()
    (tmp_path / "o.csv.partial").mkdir()
    write(tmp_path / "o.csv.partial" / "unit-00000.csv", ROWS)
    source = str(tmp_path / "o.csv.partial" / "unit-00000.csv")
    refused(order(source, str(tmp_path / "o.csv")), "folder of unfinished work")
    assert contents(given) == before
    # The folder of the inputs holds them and us where the names differ.
    score(order(f"{given}/*.csv", f"{given}/", out_format="jsonl"), open_predictor=opening())
    assert contents(given).keys() - before.keys() == {"a.jsonl"}


def test_what_is_not_ours_beside_the_output_stays(
    bundle: Path, tmp_path: Path, given: Path
) -> None:
    out = tmp_path / "o.csv"
    order = Order(str(given / "a.csv"), str(out), str(bundle))
    receipt = tmp_path / "o.csv.score.json"
    receipt.write_text("my notes")
    refused(order, "is there already and no receipt of ours")
    assert receipt.read_text() == "my notes"
    receipt.unlink()
    work = tmp_path / "o.csv.partial"
    (work / "mine").mkdir(parents=True)
    (work / "mine" / "notes").write_text("theirs")
    (work / "notes").write_text("theirs")
    half = tmp_path / "o.csv.half"
    half.write_text("theirs")
    score(order, open_predictor=opening())
    assert contents(work) == {"mine/notes": "theirs", "notes": "theirs"}
    assert half.read_text() == "theirs"
    assert len(read(out)) == 4
    assert json.loads(receipt.read_text())["counts"]["rows"] == 4


@pytest.mark.parametrize("folder", [False, True])
def test_what_appears_meanwhile_is_not_replaced(
    bundle: Path, tmp_path: Path, given: Path, folder: bool
) -> None:
    """A run may take hours, and its output was free when it began."""
    out = tmp_path / "out"
    file = out / "sub" / "b.csv" if folder else tmp_path / "o.csv"
    order = Order(str(given), f"{out}/" if folder else str(file), str(bundle))

    def meanwhile(found: Any, _: Order) -> Fake:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("theirs")
        return Fake(found.manifest.labels)

    with pytest.raises(UsageError, match=r"put there while this ran.*what was scored is kept"):
        score(order, open_predictor=meanwhile)
    refused(order, "put there while this ran")
    assert file.read_text() == "theirs"
    file.rename(tmp_path / "away")
    score(order, open_predictor=lambda *_: pytest.fail("scored twice"))
    assert len(read(file)) == (2 if folder else 6)


def test_the_same_relative_name_elsewhere_has_its_own_work(
    bundle: Path, tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xlt_serve.scoring.publish import work_folder

    order = Order(str(given), "o.csv", str(bundle), work=str(tmp_path / "work"))
    folders = set()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        folders.add(work_folder(order))
    assert len(folders) == 2


def test_a_store_keeps_what_is_not_ours(
    bundle: Path, tmp_path: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/stay/out/theirs.csv", b"theirs")
    memory.pipe_file("/stay/out/a.csv", b"old")
    order = Order(str(given), "memory://stay/out/", str(bundle))
    refused(order, "is there already")
    score(replace(order, overwrite=True), open_predictor=opening())
    assert memory.cat_file("/stay/out/theirs.csv") == b"theirs"
    assert memory.cat_file("/stay/out/a.csv") != b"old"
    memory.pipe_file("/stay/in.csv", (given / "a.csv").read_bytes())
    address = "memory://stay/in.csv"
    refused(Order(address, address, str(bundle), overwrite=True), "is the input itself")
    refused(Order(address, "memory://stay/out", str(bundle), out_format="csv"), "is a folder")
