"""The file that says which translators there are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.xlt_serve.translation.engines import libretranslate, shout
from xlt_serve.errors import ConfigError, DataError, UsageError
from xlt_serve.translation import load
from xlt_serve.translation.config import essence, problems
from xlt_serve.translation.protocol import Translation, Untranslated
from xlt_serve.translation.recorded import Recorded, RecordedRow, read


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "translators.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_makes_translators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBRE_KEY", "secret")
    rows = [{"source": "sw", "target": "en", "text": "Habari", "translation": "News"}]
    (tmp_path / "table.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with libretranslate(shout) as (url, asked):
        file = write(
            tmp_path,
            f"""
            deadline = 3.5
            cache = 7
            [engine.table]
            kind = "recorded"
            file = "table.jsonl"
            [engine.libre]
            kind = "http"
            url = "{url}"
            api_key_env = "LIBRE_KEY"
            timeout = 2
            batch = 5
            least_quality = 0.4
            connections = 3
            failures = 9
            [routes]
            sw = ["table", "libre"]
            fr = ["libre"]
            """,
        )
        with load(file) as translators:
            assert translators.deadline == 3.5
            out = translators.translate(
                ["Habari", "Asante", "Merci", "Danke"], ["sw", "sw", "fr", "de"], "en"
            )
            engine = translators.router.engines["libre"]
    assert [o.text for o in out if isinstance(o, Translation)] == ["News", "ASANTE", "MERCI"]
    assert isinstance(out[3], Untranslated)
    assert (engine.timeout, engine.batch, engine.calls) == (2, 5, 3)
    assert (engine.breaker.failures, engine.least_quality) == (9, 0.4)
    assert translators.router.cache.entries == 7
    assert {body["api_key"] for body in asked} == {"secret"}


def test_what_was_translated_is_kept_on_disk(tmp_path: Path) -> None:
    with libretranslate(shout) as (url, asked):
        text = f'record = "kept/all.jsonl"\n[engine.libre]\nkind = "http"\nurl = "{url}"\n'
        file = write(tmp_path, text + '[routes]\nde = ["libre"]\n')
        for _ in range(2):
            with load(file) as translators:
                (out,) = translators.translate(["hallo"], ["de"], "en")
                assert out == Translation("HALLO", "libre")
    assert len(asked) == 1
    assert read(tmp_path / "kept" / "all.jsonl") == [
        RecordedRow("de", "en", "hallo", "HALLO", "libre")
    ]


def test_translations_hang_on_engines_and_models_but_not_on_patience(tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_text("source\ttarget\ttext\ttranslation\na\tb\tc\td\n")
    plain = '[engine.a]\nkind = "recorded"\nfile = "table.tsv"\n'
    before = essence(write(tmp_path, plain))
    assert essence(write(tmp_path, f"deadline = 3\n{plain}timeout = 9\nbatch = 2\n")) == before
    others = [
        essence(write(tmp_path, f"longest = 9\n{plain}")),
        essence(write(tmp_path, f"{plain}least_quality = 0.5\n")),
        essence(write(tmp_path, f'{plain}[routes]\nde = ["a"]\n')),
    ]
    (tmp_path / "table.tsv").write_text("source\ttarget\ttext\ttranslation\na\tb\tc\te\n")
    others.append(essence(write(tmp_path, plain)))
    assert before not in others


def test_every_problem_is_told_at_once() -> None:
    found = problems(
        {
            "speed": 9,
            "deadline": -1,
            "engine": {
                "a": {"kind": "telepathy"},
                "b": {"kind": "http", "timeout": 0, "colour": "red"},
                "c": {"kind": "ctranslate2", "folder": 5},
                "d": 3,
            },
            "routes": {"de": ["a", "nobody"], "fr": "b"},
        }
    )
    for words in (
        "speed is unknown",
        "deadline = -1 must be positive",
        "engine.a.kind = 'telepathy' must be one of",
        "engine.b.timeout = 0 must be positive",
        "engine.b.colour is unknown",
        "engine.b.url is missing",
        "engine.c.folder = 5 is of the wrong type",
        "engine.d must be a table",
        "routes.de names 'nobody'",
        "routes.fr must be a list",
    ):
        assert any(words in problem for problem in found), words
    assert len(found) == 10
    assert problems({}) == ["there is no [engine.NAME]"]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("= 1", UsageError, "not TOML"),
        ("", ConfigError, r"no \[engine.NAME\]"),
        ('[engine.a]\nkind = "http"\nurl = "x"', ConfigError, r"engine.a: x: is not an http"),
        ('[engine.a]\nkind = "recorded"\nfile = "no.tsv"', ConfigError, "is not there"),
        ('[engine.a]\nkind = "ctranslate2"\nfolder = "."', ConfigError, "no CTranslate2 model"),
        (
            '[engine.a]\nkind = "http"\nurl = "http://x"\napi_key_env = "XLT_NO_SUCH"',
            ConfigError,
            "XLT_NO_SUCH: is not set",
        ),
    ],
)
def test_a_file_that_can_not_work_is_refused_at_the_start(
    tmp_path: Path, text: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        load(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml: is not there"):
        load(tmp_path / "none.toml")


def test_tables_are_read_in_both_forms(tmp_path: Path) -> None:
    tsv = tmp_path / "a.tsv"
    tsv.write_text("target\tsource\ttext\ttranslation\tquality\nen\tde\tHallo\tHello\t0.5\n\n")
    assert read(tsv) == [RecordedRow("de", "en", "Hallo", "Hello", "", 0.5)]
    table = Recorded("t").add(read(tsv))
    out = asyncio.run(table.translate([" Hallo ", "Welt"], "de", "en"))
    assert out == [Translation("Hello", "t", 0.5), None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"source": "de"}', "line 1: has no target"),
        ('{"source": ', "line 1: is not JSON"),
        ("source\ttext\nde\tx", "line 2: has no target"),
        ("source\ttarget\ttext\ttranslation\nde\ten\tx\t ", "line 2: has no translation"),
    ],
)
def test_a_table_s_bad_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "bad"
    file.write_text(text)
    with pytest.raises(DataError, match=words):
        read(file)
