"""`xlt translator` and `xlt predict` with translations, as a user calls them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from xlt_serve.bundle import Bundle
from xlt_serve.cli import main as cli

GERMAN, ENGLISH = "Das Spiel der Mannschaft war gut.", "The team's match was good."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    row = {"source": "de", "target": "en", "text": GERMAN, "translation": ENGLISH, "quality": 0.9}
    (tmp_path / "table.jsonl").write_text(json.dumps(row))
    out = tmp_path / "translators.toml"
    out.write_text('[engine.table]\nkind = "recorded"\nfile = "table.jsonl"\n')
    return out


def told(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    *arguments: object,
) -> tuple[int, list[dict[str, object]], str]:
    stdin = io.TextIOWrapper(io.BytesIO(lines.encode()), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    code = cli.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines() if line.startswith("{")], err


def test_translators_can_be_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    lines = f"{GERMAN}\nEl gato duerme en la casa.\n"
    code, out, _ = told(capsys, monkeypatch, lines, "translator", "try", file)
    assert code == 0
    assert out[0] | {"quality": 0.9} == out[0]
    assert (out[0]["translation"], out[0]["engine"]) == (ENGLISH, "table")
    assert (out[1]["source"], out[1]["translation"]) == ("es", None)
    assert "table has nothing for this text" in str(out[1]["reason"])


def test_predict_takes_translations(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    graph_bundles: dict[str, Bundle],
) -> None:
    bundle = graph_bundles["xlm-roberta"].path
    lines = f"{GERMAN}\nDas Wetter ist heute schlecht.\n"
    common = ("predict", "--bundle", bundle, "--translators", file)
    code, out, _ = told(capsys, monkeypatch, lines, *common, "--paired")
    assert code == 0
    assert [row["mixed"] for row in out] == [True, False]
    assert (out[0]["translation"], out[0]["mode"], out[1]["mode"]) == (ENGLISH, "paired", "plain")
    assert out[1]["reason"]["code"] == "no_translator"  # type: ignore[index]
    code, out, _ = told(capsys, monkeypatch, lines, *common, "--translate", "--require-translation")
    assert [row["mode"] for row in out] == ["translate", "translate"]
    assert out[0]["error"] is None
    assert out[1]["error"]["code"] == "untranslated"  # type: ignore[index]


def test_wrong_calls_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for arguments, words in (
        (("predict", "--paired", "--translators", tmp_path / "no.toml"), "no.toml: is not there"),
        (("predict", "--require-translation"), "mode=plain uses no translations"),
        (("translator", "try", tmp_path / "no.toml"), "no.toml: is not there"),
        (("translator", "convert", tmp_path, "--out", tmp_path), "is there already"),
        (("translator", "convert", "x", "--out", "y", "--compute", "int3"), "must be one of int8"),
        (("translator", "fetch", "nobody/nothing", "--out", tmp_path / "x"), "can't be fetched"),
    ):
        code, _, err = told(capsys, monkeypatch, "x\n", *arguments)
        assert code in (1, 2), arguments
        assert words in err
        assert err.count("\n") == 1
