"""Words of everyday things and countries from Unicode's CLDR, in every language at hand.

Vietnamese and Urdu have no free word list in Debian; CLDR names two thousand pictures and places in
all of them, under the permissive Unicode licence.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from xlt_training.encoders.corpus import Pair

VERSION = "48.2.0"
ADDRESS = "https://registry.npmjs.org/{name}/-/{name}-{version}.tgz"
_SYMBOLS = re.compile(r"[:()\[\]0-9“”\"]")


def fetch(folder: Path, languages: list[str]) -> dict[str, dict[str, str]]:
    """language → key (a picture, or a territory's code) → names, commas between them.

    Empty where the registry can't be reached.
    """
    path = folder / f"names-{VERSION}.json"
    if not path.exists():
        wanted = {language: dict[str, str]() for language in ["en", *languages]}
        try:
            for package in ("cldr-annotations-full", "cldr-localenames-full"):
                for language, key, name in _read(package):
                    if language in wanted:
                        wanted[language][key] = name
        except (OSError, urllib.error.URLError):
            print("names: CLDR can't be fetched, going on without it", flush=True)
            return {}
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(wanted, ensure_ascii=False, sort_keys=True), encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _read(package: str) -> Iterator[tuple[str, str, str]]:
    with urllib.request.urlopen(ADDRESS.format(name=package, version=VERSION), timeout=60) as reply:
        archive = tarfile.open(fileobj=io.BytesIO(reply.read()))  # noqa: SIM115 - in memory
    for member in archive.getmembers():
        parts = Path(member.name).parts
        if len(parts) != 4 or not member.isfile():
            continue
        kind, language = parts[3].removesuffix(".json"), parts[2]
        if kind not in ("annotations", "territories"):
            continue
        handle = archive.extractfile(member)
        assert handle is not None
        table = json.load(handle)
        if kind == "annotations":
            for picture, names in table["annotations"].get("annotations", {}).items():
                own = names.get("tts", [])
                others = [name for name in names.get("default", []) if name not in own]
                yield language, f"picture {picture}", ", ".join([*own, *others])
        else:
            for code, name in table["main"][language]["localeDisplayNames"][kind].items():
                if "-" not in code:
                    yield language, f"{kind} {code}", name


def pairs(names: dict[str, dict[str, str]], language: str) -> list[Pair]:
    """(English names, the same in ``language``): small bags of related words."""
    english, other = names.get("en", {}), names.get(language, {})
    return [
        Pair(language, english[key], other[key])
        for key in english
        if key in other and english[key] != other[key]
    ]


def words(names: dict[str, dict[str, str]], language: str) -> list[tuple[str, str]]:
    """The first name alone, as a word list: (English, other)."""
    found: dict[tuple[str, str], None] = {}
    for pair in pairs(names, language):
        first, other = pair.english.split(",")[0], pair.other.split(",")[0]
        if first != other and not _SYMBOLS.search(first + other) and len(first.split()) <= 3:
            found[first, other] = None
    return list(found)
