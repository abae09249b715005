"""The page of routes."""

from __future__ import annotations

import re

import pytest

from xlt_serve import wire
from xlt_serve.serving import routes_table
from xlt_serve.serving.routes import OPERATIONS, Operation

PAGE = routes_table.TABLE.read_text(encoding="utf-8")


def test_the_committed_page_is_that_of_the_description() -> None:
    """Else: python -m xlt_serve.serving.routes_table."""
    assert routes_table.table() == PAGE


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: each.name)
def test_every_route_is_there_with_every_field_that_it_takes(each: Operation) -> None:
    _, _, rest = PAGE.partition(f"## `{each.method} {each.path}`\n")
    section = rest.partition("\n## ")[0]
    assert section
    told = set(re.findall(r"^\| `(\w+)` \|.* \| .+ \|$", section, re.MULTILINE))
    taken = {kind.__name__: set(kind.model_fields) for kind in wire.REQUESTS}
    assert told == taken.get(each.takes, set())


@pytest.mark.parametrize("kind", wire.ANSWERS, ids=lambda kind: kind.__name__)
def test_every_answer_is_there_with_every_field_that_it_gives(kind: type) -> None:
    _, _, rest = PAGE.partition(f"### {kind.__name__}\n")
    told = re.findall(r"^\| `(\w+)` \|", rest.partition("\n#")[0], re.MULTILINE)
    assert set(told) == set(kind.model_fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 100_000}, "at least 1, at most 100,000"),
        ({"anyOf": [{"type": "null"}, {"exclusiveMinimum": 0.5}]}, "over 0.5"),
        ({"exclusiveMaximum": 2**63}, "below 9,223,372,036,854,775,808"),
        ({"minimum": 1e-38}, "at least 1e-38"),
        ({"type": "string"}, ""),
    ],
)
def test_a_range_is_said_in_words(schema: dict[str, object], said: str) -> None:
    assert routes_table.range_of(schema) == said


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"type": "array", "items": {}}, "array"),
        ({"type": "array", "items": {"type": "string"}}, "array of string"),
        ({"type": "array", "items": {"$ref": "#/x/Model"}}, "array of [Model](#model)"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"type": "object", "additionalProperties": True}, "object"),
        ({"enum": ["a", "b"], "type": "string"}, '`"a"`, `"b"`'),
    ],
)
def test_a_kind_is_said_in_words(schema: dict[str, object], said: str) -> None:
    assert routes_table.kind_of(schema) == said
