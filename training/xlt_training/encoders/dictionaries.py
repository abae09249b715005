"""Free bilingual word lists (FreeDict, as Debian ships them) for languages with little parallel text.

A word list enters training twice: its entries as tiny translation pairs, and as the source of
code-switched English sentences whose teacher vector is that of the original sentence.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# language → (Debian package, the English side comes first)
PACKAGES = {
    "ar": [("dict-freedict-eng-ara", True)],
    "bg": [("dict-freedict-eng-bul", True)],
    "de": [("dict-freedict-eng-deu", True)],
    "el": [("dict-freedict-ell-eng", False), ("dict-freedict-eng-ell", True)],
    "es": [("dict-freedict-eng-spa", True)],
    "fr": [("dict-freedict-eng-fra", True)],
    "hi": [("dict-freedict-eng-hin", True)],
    "it": [("dict-freedict-eng-ita", True)],
    "ja": [("dict-freedict-eng-jpn", True)],
    "nl": [("dict-freedict-eng-nld", True)],
    "pl": [("dict-freedict-eng-pol", True)],
    "pt": [("dict-freedict-eng-por", True)],
    "ru": [("dict-freedict-eng-rus", True)],
    "sw": [("dict-freedict-swh-eng", False), ("dict-freedict-eng-swh", True)],
    "tr": [("dict-freedict-eng-tur", True)],
}
LICENCES = {
    "GPL-2+": "ar el es fr hi it nl pt ru sw tr",
    "GPL-3+": "de pl",
    "CC BY-SA 3.0": "bg el ja",
}
_LATIN = re.compile("[A-Za-z]")
_SCRIPT = {
    "ar": re.compile("[\u0600-\u06ff]"),
    "bg": re.compile("[\u0400-\u04ff]"),
    "el": re.compile("[\u0370-\u03ff\u1f00-\u1fff]"),
    "hi": re.compile("[\u0900-\u097f]"),
    "ja": re.compile("[\u3040-\u30ff\u4e00-\u9fff]"),
    "ru": re.compile("[\u0400-\u04ff]"),
}
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def fetch(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """language → (English, other) word pairs; languages whose package can't be had are left out."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    out: dict[str, list[tuple[str, str]]] = {}
    for language, packages in PACKAGES.items():
        found: dict[tuple[str, str], None] = {}
        for package, english_first in packages:
            if not list(folder.glob(f"**/{package[5:]}.index")) and not unpack(package, folder):
                print(f"dictionaries: {package} can't be fetched, going on without it", flush=True)
                continue
            index = next(folder.glob(f"**/{package[5:]}.index"))
            for head, translation in entries(index, "en" if not english_first else language):
                pair = (head, translation) if english_first else (translation, head)
                if all(1 < len(side) <= 40 and side.count(" ") <= 2 for side in pair):
                    found[pair] = None
        if found:
            out[language] = list(found)
    return out


def entries(index: Path, target: str) -> Iterator[tuple[str, str]]:
    """(headword, translation) of a dictd database; ``target`` is the language of translations.

    A definition also holds examples and glosses; a line counts as translations when it is in the
    target's script and is neither indented nor quoted.
    """
    body = gzip.decompress(index.with_suffix(".dict.dz").read_bytes())
    for line in index.read_text(encoding="utf-8").split("\n"):
        head, _, rest = line.partition("\t")
        if not rest or head.startswith("00"):
            continue
        offset, length = (_number(field) for field in rest.split("\t")[:2])
        definition = body[offset : offset + length].decode("utf-8", "replace").split("\n")
        head = _clean(re.split(r" [/<(\[]", definition[0])[0])
        if not head:
            continue
        for text in definition[1:]:
            if text.startswith((" ", "\t", '"')) or not _SCRIPT.get(target, _LATIN).search(text):
                continue
            if target in _SCRIPT and _LATIN.search(text):
                continue
            for piece in re.split(r"[,;]", re.sub(r"\([^)]*\)|\[[^]]*\]|^\d+\.", " ", text)):
                if "<" not in piece and (piece := _clean(piece)):
                    yield head, piece


def lexicon(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    """English word → translations, single English words only, lower-cased."""
    out: dict[str, list[str]] = defaultdict(list)
    for english, other in pairs:
        english = english.lower().removeprefix("to ").removeprefix("be ")
        if " " not in english:
            out[english].append(other)
    return dict(out)


def hindi_to_urdu(texts: list[str]) -> list[str]:
    """Rule-based Hindi→Urdu by Apertium (package ``apertium-urd-hin``), the two being near twins."""
    done = subprocess.run(
        ["apertium", "-u", "hin-urd"],
        input="\n".join(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip("\n").split("\n")


def unpack(package: str, folder: Path) -> bool:
    try:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=folder, check=True)
        deb = next(folder.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(deb), str(folder)], check=True)
    except (OSError, subprocess.CalledProcessError, StopIteration):
        return False
    return True


def _number(text: str) -> int:
    value = 0
    for letter in text:
        value = value * 64 + _DIGITS.index(letter)
    return value


def _clean(text: str) -> str:
    text = re.sub(r"\{[^}]*\}", "", text.replace("~", " "))
    if _SCRIPT["bg"].search(
        text
    ):  # Bulgarian entries carry stress marks that running text never has
        text = unicodedata.normalize("NFD", text).replace("\u0301", "").replace("\u0300", "")
    return " ".join(unicodedata.normalize("NFC", text).strip(" .:!?'\"").split())
