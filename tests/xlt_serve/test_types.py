"""Options have ranges and lengths, the same in Python as on the wire."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve import load, modes, wire
from xlt_serve.errors import UsageError
from xlt_serve.types import (
    LONGEST,
    LONGEST_CODE,
    MOST_ENTRIES,
    SHOWN,
    Prediction,
    Predictions,
    Votes,
)

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


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (
            wire.ClassifyRequest,
            {"text": "a"},
            "text: Extra inputs are not permitted; did you mean texts?",
        ),
        (wire.ZeroShotRequest, {"text": ["a"], "labels": ["b"]}, "did you mean texts?"),
        (wire.ClassifyRequest, {"texts": ["a"], "topk": 3}, "did you mean top_k?"),
        (wire.SwapRequest, {"name": "a", "forced": True}, "did you mean force?"),
    ],
)
def test_a_key_that_is_none_is_told_what_was_meant(kind: Any, body: Any, says: str) -> None:
    with pytest.raises(wire.Invalid) as caught:
        wire.parse(kind, body)
    assert says in str(caught.value)


def test_a_key_like_no_other_is_only_refused() -> None:
    with pytest.raises(wire.Invalid) as caught:
        wire.parse(wire.ClassifyRequest, {"texts": ["a"], "zzz": 1})
    assert str(caught.value) == "zzz: Extra inputs are not permitted"


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


class Cells(HTMLParser):
    """The texts of a table's cells, their directions, and all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: set[str] = set()
        self.directions: set[str | None] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")
            self.directions.add(dict(attrs).get("dir"))

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


def test_a_notebook_shows_predictions_as_a_table() -> None:
    found = load().predict(["Die Mannschaft gewann das Finale.", ""])
    assert isinstance(found, list)
    shown = Cells(found._repr_html_())
    best = max(found[0].probabilities.values())
    assert shown.cells[:3] == ["0", "sports", f"{best:.1%}"]
    assert shown.cells[5:] == ["1", "–", "", "", str(found[1].error.message)]  # type: ignore[union-attr]
    assert Cells(found[0]._repr_html_()).cells == shown.cells[:5]


def test_votes_warnings_and_abstentions_are_told() -> None:
    votes = Votes({"a": 3, "b": 7}, 10, 1, 0.4, None, warning="trained otherwise")
    more: dict[str, Any] = {"smoothed": votes, "warning": "kept for en", "language": ("de", "en")}
    [*_, strength, language, note] = Cells(
        Prediction(
            None, {"a": 0.3, "b": 0.7}, abstained="votes", truncated=True, **more
        )._repr_html_()
    ).cells
    assert strength == "7 of 10 votes"
    assert language == "de, en"
    assert note == "abstained (votes); cut; kept for en; trained otherwise"


@given(st.text(), st.text())
def test_nothing_in_a_prediction_is_markup(label: str, message: str) -> None:
    many = Predictions([Prediction(label, warning=message), Prediction(None)] * 300)
    shown = Cells(many._repr_html_())
    assert shown.tags == {"table", "thead", "tbody", "tr", "th", "td", "p"}
    assert shown.directions == {"auto"}
    assert len(shown.cells) == 5 * SHOWN
    assert "… and 580 more" in shown.cells[-1]
