"""Options have ranges and lengths, the same in Python as on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from xlt_serve import modes, wire
from xlt_serve.errors import UsageError
from xlt_serve.types import LONGEST, LONGEST_CODE, MOST_ENTRIES

LABELS = ("a", "b")
TOO_LONG: list[tuple[str, dict[str, Any]]] = [
    ("plain", {"language": "x" * (LONGEST_CODE + 1)}),
    ("plain", {"language": ["de", "x" * (LONGEST_CODE + 1)]}),
    ("smoothed", {"noise": "x" * (LONGEST_CODE + 1)}),
    ("zero_shot", {"labels": ("a", "x" * (LONGEST + 1))}),
    ("zero_shot", {"labels": LABELS, "template": "{}" + "x" * (LONGEST - 1)}),
    ("zero_shot", {"labels": LABELS, "template": {"de": "{}" + "x" * (LONGEST - 1)}}),
    ("zero_shot", {"labels": LABELS, "template": {"x" * (LONGEST + 1): "{}"}}),
    ("zero_shot", {"labels": LABELS, "template": {str(n): "{}" for n in range(MOST_ENTRIES + 1)}}),
]


@pytest.mark.parametrize(("mode", "given"), TOO_LONG)
def test_options_that_are_too_long_are_refused(mode: str, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="may have at most"):
        modes.settings(mode, **given)
    asked = {"texts": ["a"]} | {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    kind: Any = wire.ClassifyRequest
    if mode == "zero_shot":
        kind = wire.ZeroShotRequest
    else:
        asked["mode"] = mode
    with pytest.raises(wire.Invalid, match="at most"):
        wire.parse(kind, asked)


def test_a_refusal_names_its_first_problems_and_stops() -> None:
    unknown = {f"k{number}": 1 for number in range(9000)}
    with pytest.raises(wire.Invalid) as caught:
        wire.parse(wire.ClassifyRequest, {"texts": ["a"], "translations": [0] * 9000} | unknown)
    names = [where for where, _ in caught.value.problems]
    assert len(names) == wire.MOST_PROBLEMS
    assert names[0] == "translations"
    assert set(names[1:]) <= {f"k{number}" for number in range(wire.MOST_PROBLEMS)}


def test_every_text_of_a_request_has_a_length() -> None:
    """But for items and their translations, which have errors of their own."""

    def unbounded(part: Any, path: str) -> list[str]:
        if isinstance(part, list):
            return [found for each in part for found in unbounded(each, path)]
        if not isinstance(part, dict):
            return []
        if part.get("type") == "string":
            return [] if {"maxLength", "enum", "const"} & part.keys() else [path]
        return [
            found
            for name, each in part.items()
            if name not in ("examples", "default", "propertyNames")
            for found in unbounded(each, f"{path}/{name}" if name != "anyOf" else path)
        ]

    definitions = wire.schema()["$defs"]
    for kind in wire.REQUESTS:
        for name, field in definitions[kind.__name__]["properties"].items():
            if name not in ("texts", "pairs", "translations"):
                assert unbounded(field, name) == [], kind.__name__
