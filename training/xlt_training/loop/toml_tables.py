"""Tables as TOML gives them: read from a file, changed by a dotted key."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from xlt_serve.errors import ConfigError, DataError
from xlt_serve.files import codecs


def read(file: Path) -> dict[str, Any]:
    if codecs.told_by(str(file))[0]:
        raise DataError(file, "is a table, not a config", f"make one of it: xlt init {file}")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(file, "is not there", "give the path of a config (.toml)") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(file, [f"is not TOML ({error})"]) from None


def override(table: dict[str, Any], given: str, problems: list[str]) -> None:
    """Put ``dotted.key=value`` into a table; the value is TOML, a bare word a string."""
    key, equals, text = given.partition("=")
    if not equals or not key:
        problems.append(f"override {given!r} is not key=value")
        return
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    put(table, key, value, f"override {given!r}", problems)


def put(table: dict[str, Any], key: str, value: Any, who: str, problems: list[str]) -> None:
    """In a list of tables, a part of the key is an entry's number or name."""
    *parents, last = key.split(".")
    places: list[Any] = [table]
    if parents[:1] == ["method"] and "method" not in table:  # those of the stages
        parents = parents[1:]
        stages = table.get("stage", [])
        places = [entry for stage in stages for entry in _inside(stage, "method")]
    for parent in parents:
        places = [inside for place in places for inside in _inside(place, parent)]
    if not places or not all(isinstance(place, dict) for place in places):
        problems.append(
            f"{who} goes into a value that is not a table; of a list name the entry: "
            "method.NAME.key=value, stage.0.train.key=value"
        )
        return
    for place in places:
        place[last] = value


def dotted(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested tables with its dotted key."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def unknown(key: str, value: Any, known: Iterable[str]) -> str:
    """An unknown key or, where ``value`` is one, an unknown value of it; with what it may have meant."""
    names = list(known)
    wrong = key.rpartition(".")[2] if value is None else str(value)
    near = difflib.get_close_matches(wrong, names, 1)
    hint = f", did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
    return (
        f"{key} is not a known key{hint}"
        if value is None
        else f"{key} = {value!r} is unknown{hint}"
    )


def _inside(place: Any, key: str) -> list[Any]:
    """What a key leads to: in a table, or in a list of tables by number or name."""
    if isinstance(place, dict):
        return [place.setdefault(key, {})]
    if not isinstance(place, list):
        return []
    if key.isdigit():
        return place[int(key) : int(key) + 1]
    return [entry for entry in place if isinstance(entry, dict) and entry.get("name") == key]
