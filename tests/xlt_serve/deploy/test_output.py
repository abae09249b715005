from __future__ import annotations

import os
from pathlib import Path

import pytest

from xlt_serve.deploy import output
from xlt_serve.errors import UsageError


def written(out: Path, text: str = "one") -> None:
    with output.replacing(out) as half:
        (half / "part").mkdir()
        (half / "part" / "file").write_text(text)
        output.write_receipt(half, {"tag": "a:1"})


def test_a_second_build_takes_the_place_of_the_first(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    written(out)
    written(out, "two")
    assert (out / "part" / "file").read_text() == "two"
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_an_empty_folder_may_be_taken(tmp_path: Path) -> None:
    written(tmp_path / "out")
    (tmp_path / "empty").mkdir()
    written(tmp_path / "empty")


def test_what_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "out"
    written(out)

    def failing() -> None:
        with output.replacing(out) as half:
            (half / "file").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert (out / "part" / "file").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("kind", ["file", "link", "folder link", "lost link", "pipe"])
def test_a_foreign_file_is_never_lost(tmp_path: Path, kind: str) -> None:
    out, mine = tmp_path / "out", tmp_path / "out" / "part" / "mine"
    written(out)
    (tmp_path / "elsewhere").mkdir()
    if kind == "file":
        mine.write_text("precious")
    elif kind == "pipe":
        os.mkfifo(mine)
    else:
        place = {"link": "out/part/file", "folder link": "elsewhere", "lost link": "nowhere"}[kind]
        mine.symlink_to(tmp_path / place)
    with pytest.raises(UsageError, match=r"mine: is not of a build; give another --out"):
        written(out, "two")
    assert os.path.lexists(mine)
    assert (out / "part" / "file").read_text() == "one"


def test_a_file_that_was_changed_is_never_lost(tmp_path: Path) -> None:
    out = tmp_path / "out"
    written(out)
    (out / "part" / "file").write_text("my own")
    with pytest.raises(UsageError, match="file: was changed since"):
        written(out)


@pytest.mark.parametrize("receipt", ["", "[]", "{}", '{"files": 1}', "\x00"])
def test_a_folder_with_another_s_receipt_is_not_ours(tmp_path: Path, receipt: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / output.RECEIPT).write_text(receipt)
    (out / "thesis.tex").write_text("precious")
    with pytest.raises(UsageError, match="is not of a build"):
        written(out)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    for name in ("out", "lost"):
        with pytest.raises(UsageError, match="is no folder"):
            written(tmp_path / name)


def test_what_python_left_behind_is_not_foreign(tmp_path: Path) -> None:
    out = tmp_path / "out"
    written(out)
    (out / "__pycache__").mkdir()
    (out / "__pycache__" / "xlt_bento.pyc").write_text("")
    written(out, "two")
    assert not (out / "__pycache__").exists()
