"""The rules of ``bundle.json``: what each of its values may be, checked before any of it is used.

A manifest comes from outside: a value that passes here can be computed with, shown and sent on. The
first value that breaks a rule is named, with the rule.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

LARGEST = 16_000_000
"""Bytes that a manifest may have; those that ship have 55 thousand."""

SHORTEST_INPUT, LONGEST_INPUT = 8, 100_000
"""Tokens that ``max_length`` may be."""

PLACES, KINDS, SCALES = ("embeddings", "encoder"), ("gaussian", "uniform"), (1e-6, 1e4)
"""Of noise, as ``smoothing.noise`` knows it."""

DEEPEST = 50
"""Levels of lists and objects."""

_NAME = re.compile(r"[^\x00-\x1f\x7f*?<>|\"\\:]+")
"""A file's name: nothing that has a second meaning for a reader, such as onnxruntime's ``*/…/*`` for
an address in memory."""


class Broken(ValueError):
    """``where`` in the manifest a ``value`` stands that breaks a ``rule``."""

    def __init__(self, where: str, value: object, rule: str) -> None:
        self.where, self.rule = where, rule
        self.value = repr(value)[:100]
        super().__init__(f"{where}={self.value} {rule}")


Check: TypeAlias = Callable[[str, Any], None]
"""Raises ``Broken`` for a value at a place."""


def read(file: Path) -> bytes:
    """The content of a file of bounded size."""
    with file.open("rb") as handle:
        content = handle.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise Broken("size", f"over {LARGEST} bytes", f"must be at most {LARGEST} bytes")
    return content


def parse(content: bytes) -> Any:
    """JSON. Names that occur twice and numbers that JSON does not have are refused: other readers
    would see something else."""
    try:
        return json.loads(content.decode(), parse_constant=_no_number, object_pairs_hook=_once)
    except RecursionError:
        raise Broken("depth", "deeper than Python reads", f"must be at most {DEEPEST}") from None


def check(raw: Mapping[str, Any]) -> None:
    """Raise ``Broken`` for the first value that breaks a rule."""
    _tree("", raw, 0)
    if unknown := sorted(set(raw) - set(_RULES)):
        raise Broken(unknown[0], raw[unknown[0]], f"is one of the unknown keys {unknown}")
    for key, rule in _RULES.items():
        if key in raw:
            rule(key, raw[key])
        elif key not in _OPTIONAL:
            raise Broken(key, None, "is not there: the manifest is not complete")


def inside(where: str, name: Any) -> None:
    """A file's name, relative to the bundle and without a way out of it."""
    _text(500)(where, name)
    if name.startswith("/") or ".." in name.split("/"):
        raise Broken(where, name, "is a file outside the bundle")
    if str(PurePosixPath(name)) != name or not _NAME.fullmatch(name):
        raise Broken(where, name, "must be a plain file name")


def _no_number(word: str) -> Any:
    raise Broken("number", word, "must be finite")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Broken(twice, out[twice], "is there twice")
    return out


def _tree(where: str, value: Any, depth: int) -> None:
    """Whatever it is: finite numbers, text that can be sent, no endless depth."""
    if depth > DEEPEST:
        raise Broken(where[:200], "…", f"lies deeper than {DEEPEST} levels")
    if isinstance(value, dict):
        for key, part in value.items():
            _tree(where, key, depth + 1)
            _tree(f"{where}.{key}" if where else key, part, depth + 1)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            _tree(f"{where}[{number}]", part, depth + 1)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Broken(where, ascii(value), "is half a character (a lone surrogate)") from None
    elif isinstance(value, int | float):
        if not abs(value) <= sys.float_info.max:  # also where it is NaN
            raise Broken(where, value, "must be finite")
    elif value is not None:
        raise Broken(where, value, "is nothing that JSON has")


def _text(longest: int, shortest: int = 0) -> Check:
    def rule(where: str, value: Any) -> None:
        if not isinstance(value, str):
            raise Broken(where, value, "must be a string")
        if not shortest <= len(value.strip()) or len(value) > longest:
            size = f"{shortest} to {longest}" if shortest else f"at most {longest}"
            raise Broken(where, value, f"must have {size} characters")

    return rule


def _whole(least: int, most: int) -> Check:
    def rule(where: str, value: Any) -> None:
        if type(value) is not int:
            raise Broken(where, value, "must be a whole number")
        if not least <= value <= most:
            raise Broken(where, value, f"must be between {least} and {most}")

    return rule


def _number(where: str, value: Any, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Broken(where, value, "must be a number")
    if not least <= value <= most:
        raise Broken(where, value, f"must be between {least:g} and {most:g}")


def _flag(where: str, value: Any) -> None:
    if type(value) is not bool:
        raise Broken(where, value, "must be true or false")


def _list(part: Check, least: int, most: int, unique: bool = False) -> Check:
    def rule(where: str, value: Any) -> None:
        if not isinstance(value, list | tuple):
            raise Broken(where, value, "must be a list")
        if not least <= len(value) <= most:
            raise Broken(where, f"{len(value)} of them", f"must be {least} to {most}")
        for number, one in enumerate(value):
            part(f"{where}[{number}]", one)
        if unique and len(set(value)) < len(value):
            twice = next(one for one in value if list(value).count(one) > 1)
            raise Broken(where, twice, "is there twice: they must differ")

    return rule


def _map(part: Check, names: Check, most: int = 10_000) -> Check:
    def rule(where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise Broken(where, value, "must be an object")
        if len(value) > most:
            raise Broken(where, f"{len(value)} of them", f"must be at most {most}")
        for name, one in value.items():
            names(f"{where}: key", name)
            part(f"{where}.{name}", one)

    return rule


def _anything(where: str, value: Any) -> None:
    """What ``_tree`` has seen is enough."""


def _one_of(words: Sequence[str]) -> Check:
    def rule(where: str, value: Any) -> None:
        if value not in words:
            raise Broken(where, value, f"must be one of {', '.join(words)}")

    return rule


def _parts(where: str, value: Mapping[str, Any], rules: Mapping[str, Check]) -> None:
    """Of an object, those parts that are there and have a rule."""
    for key in rules.keys() & value.keys():
        rules[key](f"{where}.{key}", value[key])


def _graph(where: str, value: Any) -> None:
    known = {"file": _onnx, "inputs": _NAMES, "outputs": _NAMES, "precision": _WORD}
    if not isinstance(value, dict) or not set(known) <= set(value):
        raise Broken(where, value, f"must be an object with {', '.join(known)}")
    for key, rule in known.items():
        rule(f"{where}.{key}", value[key])


def _onnx(where: str, value: Any) -> None:
    inside(where, value)
    if not value.endswith(".onnx"):  # onnxruntime reads others by other rules
        raise Broken(where, value, "must end in .onnx")


def _sha256(where: str, value: Any) -> None:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise Broken(where, value, "must be a sha256 in hex digits")


def _calibrated(where: str, value: Any) -> None:
    _map(_anything, _WORD)(where, value)
    if "temperature" in value:
        # Export fits it within [0.05, 20]; far outside, probabilities leave the floats.
        _number(f"{where}.temperature", value["temperature"], 1e-4, 1e4)
    if value.get("abstain_below") is not None:
        _number(f"{where}.abstain_below", value["abstain_below"], 0, 1)
    for name in ("agreement_offset", "agreement_slope", "agreement_least"):
        if value.get(name) is not None:
            _number(f"{where}.{name}", value[name], -1e4, 1e4)


def _noise(where: str, value: Any) -> None:
    _OBJECT(where, value)
    _parts(where, value, {"at": _one_of(PLACES), "kind": _one_of(KINDS), "words": _drawn})
    if "kind" in value or value.get("scale") is not None:
        _number(f"{where}.scale", value.get("scale"), *SCALES)


def _drawn(where: str, value: Any) -> None:
    """How training drew synonyms; empty: it did not."""
    _OBJECT(where, value)
    if value:
        needed: dict[str, Any] = {"language": None, "draws": None}
        known = {"language": _text(100, shortest=1), "draws": _one_of(("groups", "neighbours"))}
        _parts(where, needed | value, known)
    if value.get("sha256") is not None:
        _sha256(f"{where}.sha256", value["sha256"])


def _checks(where: str, value: Any) -> None:
    """What is computed with; the rest is for people."""
    _OBJECT(where, value)
    invariance = _map(_invariant, _WORD)
    known = {"zero_shot": _zero_shot, "trimmed": _trimmed, "training_text": _training_text}
    _parts(where, value, {"invariance": invariance, **known})


def _invariant(where: str, value: Any) -> None:
    _OBJECT(where, value)
    _flag(f"{where}.holds", value.get("holds"))
    if "largest_difference" in value or not value["holds"]:
        _number(f"{where}.largest_difference", value.get("largest_difference"), 0, math.inf)


def _trimmed(where: str, value: Any) -> None:
    _OBJECT(where, value)
    _parts(where, value, {"languages": _list(_text(100, shortest=1), 0, 10_000)})


def _zero_shot(where: str, value: Any) -> None:
    _OBJECT(where, value)
    _parts(where, value, {"scorer": _one_of(("nli", "similarity")), "template": _template})


def _template(where: str, value: Any) -> None:
    """One, or one for each language."""
    if isinstance(value, dict):
        _map(_hypothesis, _text(64, shortest=1), most=200)(where, value)
    else:
        _hypothesis(where, value)


def _hypothesis(where: str, value: Any) -> None:
    _text(1_000)(where, value)
    if value.count("{}") != 1:
        raise Broken(where, value, "must have one {} for the label")


def _training_text(where: str, value: Any) -> None:
    """As ``evaluation.distance`` reads it: centres as wide as the scale."""
    _OBJECT(where, value)
    wide = len(value["scale"]) if isinstance(value.get("scale"), list | tuple) else 0
    known = {
        "output": _one_of(("vector", "logits")),
        "scale": _list(_between(1e-9, 1e9), 1, 100_000),
        "centres": _list(_list(_between(-1e9, 1e9), wide, wide), 1, 100_000),
        "typical": _between(1e-9, 1e9),
    }
    _parts(where, dict.fromkeys(known) | value, known)


def _between(least: float, most: float) -> Check:
    return lambda where, value: _number(where, value, least, most)


_WORD = _text(200, shortest=1)
_OBJECT = _map(_anything, _text(1_000))
_NAMES = _list(_WORD, 1, 100, unique=True)
_RULES: dict[str, Check] = {
    "format": _whole(1, 1_000_000),
    "name": _WORD,
    "version": _text(100),
    "task": _text(1_000),
    "pair": _flag,
    "labels": _list(_text(1_000, shortest=1), 1, 100_000, unique=True),
    "source_language": _text(100),
    "languages": _list(_text(100, shortest=1), 0, 10_000),
    "method": _OBJECT,
    "graphs": _map(_graph, _WORD, most=100),
    "tokenizer": inside,
    "max_length": _whole(SHORTEST_INPUT, LONGEST_INPUT),
    "pad_id": _whole(0, 2**31 - 1),
    "noise": _noise,
    "synonyms": _map(inside, _text(100, shortest=1)),
    "calibration": _map(_calibrated, _WORD),
    "scores": _OBJECT,
    "checks": _checks,
    "notes": _text(1_000_000),
    "packages": _map(_text(200), _WORD),
    "files": _map(_sha256, inside),
}
_OPTIONAL = {"noise", "synonyms", "calibration", "scores", "checks", "notes", "packages"}
