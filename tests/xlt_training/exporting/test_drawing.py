"""Rows drawn for export: every label has its share, whatever the order of the file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from xlt_training.exporting import brought_text, gate
from xlt_training.exporting.drawing import drawn
from xlt_training.loop.model import Description
from xlt_training.loop.types import Example

from xlt_serve.files.labelled import Columns


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 60), min_size=1), st.integers(0, 80)
)
def test_each_label_has_its_share_and_the_order_stays(sizes: dict[str, int], most: int) -> None:
    labels = [label for label in sizes for _ in range(sizes[label])]
    rows = [Example("x", label, "en", id=str(n)) for n, label in enumerate(labels)]
    found = drawn(rows, most)
    assert len(found) == min(most, len(rows))
    assert found == sorted(found, key=lambda each: int(each.id))
    assert found == drawn(rows, most)
    counts = Counter(each.label for each in found)
    for label, size in sizes.items():
        exact = len(found) * size / len(rows)
        assert counts[label] >= min(1, int(exact))
        if most >= len(sizes):
            assert counts[label] >= 1
        if all(most * s >= len(rows) for s in sizes.values()):  # nobody was given one of another's
            assert abs(counts[label] - exact) < 1 or len(found) == len(rows)


def test_translations_are_drawn_alike_and_another_seed_draws_others() -> None:
    rows = {
        lg: [Example(f"{lg} {n}", "ab"[n % 3 == 0], lg, id=str(n)) for n in range(900)]
        for lg in ("en", "de")
    }
    ids = [[each.id for each in drawn(mine, 300)] for mine in rows.values()]
    assert ids[0] == ids[1] != [each.id for each in drawn(rows["en"], 300, seed=1)]
    assert ids[0] != [str(n) for n in range(300)]


def test_a_file_sorted_by_label_is_judged_on_all_labels(tmp_path: Path) -> None:
    """Dev rows of a task, train rows beside them, and the file of a brought classifier."""
    file, few = tmp_path / "dev.csv", tmp_path / "few.csv"
    labels = ["a"] * 600 + ["b"] * 300
    rows = [f"text {number},{label}" for number, label in enumerate(labels)]
    file.write_text("text,label\n" + "\n".join(rows))
    few.write_text("text,label\n" + "\n".join([*rows[:10], *rows[-10:]]))
    task = {"name": "files", "train": str(file), "dev": str(few)}
    known = Description("files", False, ["a", "b"], "en", 64, {"task": task})
    text = gate.real_text(known, str(file))["en"]
    assert Counter(each.label for each in text.dev) == {"a": 200, "b": 100}
    assert (text.there, text.more) == (900, [])
    text = gate.real_text(known, "")["en"]
    assert (len(text.dev), text.there, len(text.more)) == (20, 20, 280)
    assert {each.label for each in text.more} == {"a", "b"}
    own = brought_text.given(known, brought_text.Rows(str(file), Columns()), [])["en"]
    assert Counter(each.label for each in own.dev) == {"a": 200, "b": 100}
    assert own.there == 900
