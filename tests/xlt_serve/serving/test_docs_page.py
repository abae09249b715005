"""The description for people: whole, and without anything from elsewhere."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.xlt_serve.serving.conftest import Local, Start
from xlt_serve.serving import docs_page, openapi
from xlt_serve.serving.routes import OPERATIONS

VOID = {"meta", "link", "br"}


class Elements(HTMLParser):
    """The elements, whether they are closed in order, and the text of the visible ones."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def page(service: Local) -> str:
    answer = service.get("/docs")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


def test_it_asks_nobody(service: Local, page: str) -> None:
    found = Elements(page).found
    assert {tag for tag, _ in found}.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert not re.search(r"url\(|@import", page)
    places = {each[name] for _, each in found for name in ("href", "src") if name in each}
    assert {place for place in places if not str(place).startswith("#")} == {"docs.json", "./"}
    assert "default-src 'none'" in service.get("/docs").headers["content-security-policy"]


def test_links_lead_to_something_and_names_are_once(page: str) -> None:
    found = Elements(page).found
    names = [str(each["id"]) for _, each in found if "id" in each]
    assert len(names) == len(set(names))
    links = {str(each["href"]) for tag, each in found if tag == "a"}
    assert {link[1:] for link in links if link.startswith("#")} <= set(names)


def test_it_has_every_route_field_example_and_error(page: str) -> None:
    document = openapi.document()
    text = Elements(page).text
    for each in OPERATIONS:
        assert f"{each.method} {each.path}" in text
        described = document["paths"].get(each.path, {}).get(each.method.lower())
        assert (described is not None) == bool(each.errors)
        section = page.partition(f'<h2 id="{each.name}">')[2].partition("<h2")[0]
        for status, answer in (described or {"responses": {}})["responses"].items():
            assert f"<code>{status}</code>" in section
            assert answer["description"] in unescape(section)
        for example in each.examples.values():
            assert json.dumps(example, ensure_ascii=False) in unescape(section).replace(
                "'\"'\"'", "'"
            )
        if each.takes:
            fields = document["components"]["schemas"][each.takes]["properties"]
            for name, field in fields.items():
                assert f"<code>{name}</code>" in section
                assert field.get("description", "") in unescape(section)
    for name, schema in document["components"]["schemas"].items():
        assert f'id="{name}"' in page
        assert all(f"<code>{field}</code>" in page for field in schema["properties"])


def test_what_the_schema_says_is_never_markup() -> None:
    document: dict[str, Any] = json.loads(json.dumps(openapi.document()))
    evil = "<script>alert(1)</script>"
    document["info"]["title"] = evil
    for schema in document["components"]["schemas"].values():
        schema["description"] = evil
        schema["properties"] = {
            evil: {"description": evil, "default": evil, "examples": [evil], "type": "string"}
        } | schema["properties"]
    assert "<script" not in docs_page.page(document)


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string", "maxLength": 5}, "string (characters ≤ 5)"),
        ({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}, "integer (≥ 1) or null"),
        ({"type": "array", "items": {}, "minItems": 2}, "list of anything (entries ≥ 2)"),
        ({"enum": ["a", "b"]}, "<code>&quot;a&quot;</code> | <code>&quot;b&quot;</code>"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"$ref": "#/components/schemas/Failure"}, '<a href="#Failure">Failure</a>'),
        ({}, "anything"),
    ],
)
def test_types_are_words(schema: dict[str, Any], shown: str) -> None:
    assert docs_page._type(schema) == shown


def test_it_needs_the_key_that_the_description_needs(start: Start) -> None:
    client = start(keys=("k" * 16,), host="0.0.0.0")
    for path in ("/docs", "/docs.json"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"X-API-Key": "k" * 16}).status_code == 200
