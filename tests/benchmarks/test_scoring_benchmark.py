"""The programs that the scoring benchmark runs in processes of their own still run."""

from __future__ import annotations

from pathlib import Path

from benchmarks import scoring
from xlt_serve.bundle import DEFAULT, MODELS


def test_the_bare_session_and_a_session_that_does_nothing(tmp_path: Path) -> None:
    texts = ["Die Mannschaft gewann das Finale.", "rain"] * 8
    source = scoring.write_texts(tmp_path / "texts.jsonl", texts)
    assert scoring.program("bare", str(MODELS / DEFAULT), str(source)) > 0
    out = tmp_path / "out.csv"
    kilobytes = scoring.program("nothing", str(source), str(out))
    assert 10_000 < kilobytes < 4_000_000
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1 + len(texts)


def test_a_run_begins_afresh(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    partial.mkdir()
    for file in (out, tmp_path / "out.jsonl.score.json", partial / "journal.jsonl"):
        file.write_text("old")
    scoring.fresh(out)
    assert list(tmp_path.iterdir()) == []
