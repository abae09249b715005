"""The OpenAPI description as a page for people: no script, and nothing that is fetched from elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from xlt_serve.serving.routes import OPERATIONS, Operation

KEYS = {
    "": "no key",
    "scrape": "a key of XLT_SCRAPE_KEYS, or of those below, if others than this machine reach the service",
    "outside": "a key of XLT_API_KEYS if others than this machine reach the service",
    "user": "a key of XLT_API_KEYS, where there are any",
    "admin": "a key of XLT_ADMIN_KEYS",
}
"""Whose key a route needs, as ``Operation.key`` has it."""

ERROR = {
    "error": {
        "code": "unknown_bundle",
        "message": "bundle='topic': is not loaded; use one of topics, topics-paired",
        "request_id": "5a1b0fa0f0a34a2d8f6e3c1d2b4a5968",
    }
}

SHORTEST_FOLD = 400
"""Characters of JSON from which an example is folded."""

STYLE = """
:root { --ink: #17202a; --soft: #5d6b7a; --line: #d5dce4; --paper: #fff; --ground: #f3f5f8; --accent: #0b5cad; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8edf2; --soft: #9aa8b6; --line: #35404c; --paper: #1b232c; --ground: #12181f; --accent: #6db3f8; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; } h2 { margin-top: 2.5rem; font-size: 1.2rem; } h3 { font-size: 1rem; margin-bottom: .3rem; }
a { color: var(--accent); }
p, dd { color: var(--soft); }
code, pre { font: .88rem/1.45 ui-monospace, monospace; }
pre { background: var(--paper); border: 1px solid var(--line); border-radius: .4rem; padding: .7rem; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: var(--paper); font-size: .92rem; }
th, td { text-align: start; vertical-align: top; padding: .35rem .6rem; border: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
summary { cursor: pointer; color: var(--soft); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


def page(document: Mapping[str, Any]) -> str:
    """All of the description: every route with its fields, its examples and its errors."""
    info = document["info"]
    body = [
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        f"<p>{escape(info['description'])} A key goes into <code>Authorization: Bearer KEY</code> or"
        ' <code>X-API-Key: KEY</code>. For programs: <a href="docs.json">docs.json</a>.'
        ' To try it: <a href="./">the page</a>.</p>',
        *_contents(),
        "<h2 id=errors>Errors</h2><p>Every answer that is no success has this body. The message says what"
        " was given, the rule, and what to do about it.</p>",
        *_example("For example", _json(ERROR)),
    ]
    taken = set()
    for operation in OPERATIONS:
        described = document["paths"].get(operation.path, {}).get(operation.method.lower())
        if described is not None:
            taken.add(operation.takes)
            body += _route(operation, described, document["components"]["schemas"])
    body.append("<h2 id=objects>Objects</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        if name not in taken:
            about = escape(schema.get("description", ""))
            body.append(f'<h3 id="{escape(name)}">{escape(name)}</h3><p>{about}</p>')
            body += _fields(schema)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(info['title'])}: routes</title>\n<style>{STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _contents() -> Iterator[str]:
    rows = []
    for each in OPERATIONS:
        name = f"<code>{each.method} {escape(each.path)}</code>"
        shown = f'<a href="#{each.name}">{name}</a>' if each.errors else name
        rows.append((shown, escape(each.about), escape(KEYS[each.key])))
    yield from _table(("route", "", "needs"), rows)


def _route(
    operation: Operation, described: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[str]:
    yield (
        f'<h2 id="{operation.name}"><code>{operation.method} {escape(operation.path)}</code></h2>'
        f"<p>{escape(described['summary'])}. Needs {escape(KEYS[operation.key])}.</p>"
    )
    examples: dict[str, Any] = {}
    if body := described.get("requestBody", {}).get("content", {}).get("application/json"):
        yield f'<h3 id="{escape(operation.takes)}">Body: {escape(operation.takes)}</h3>'
        yield from _fields(schemas[operation.takes])
        examples = body["examples"]
    elif operation.method == "GET":
        yield from _example("Request", _curl(operation, None))
    answers = described["responses"]
    given = answers["200"].get("content", {}).get("application/json", {})
    for name, example in examples.items():
        yield from _example(f"Example: {name}", _curl(operation, example["value"]))
        if name in given.get("examples", {}):
            yield from _example("Its answer", _json(given["examples"][name]["value"]))
    rows = []
    for status, answer in answers.items():
        content = answer.get("content", {}).get("application/json")
        kind = _link(content["schema"]) if content else ""
        headers = ", ".join(answer.get("headers", ()))
        more = f" (header <code>{escape(headers)}</code>)" if headers else ""
        rows.append((f"<code>{status}</code>", escape(answer["description"]) + more, kind))
    yield "<h3>Answers</h3>"
    yield from _table(("status", "", "body"), rows)


def _example(title: str, text: str) -> Iterator[str]:
    shown = f'<pre dir="ltr" tabindex="0">{escape(text)}</pre>'
    if len(text) > SHORTEST_FOLD:
        yield f"<details><summary>{escape(title)}</summary>{shown}</details>"
    else:
        yield f"<h3>{escape(title)}</h3>{shown}"


def _curl(operation: Operation, body: Any) -> str:
    call = f"curl http://localhost:3000{operation.path}"
    if operation.key:
        call += " -H 'Authorization: Bearer KEY'"
    if body is None:
        return call
    sent = shlex.quote(json.dumps(body, ensure_ascii=False))
    return f"{call} -H 'Content-Type: application/json' \\\n  -d {sent}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    rows = []
    for name, field in schema.get("properties", {}).items():
        need = "required" if name in required else _default(field)
        shown = [escape(field.get("description", ""))]
        if examples := field.get("examples"):
            shown.append(f"e.g. <code>{escape(json.dumps(examples[0], ensure_ascii=False))}</code>")
        about = "; ".join(part for part in shown if part)
        rows.append((f"<code>{escape(name)}</code>", _type(field), need, about))
    yield from _table(("field", "type", "", "meaning"), rows)


def _default(field: Mapping[str, Any]) -> str:
    if field.get("default") is None:
        return ""
    return f"default <code>{escape(json.dumps(field['default'], ensure_ascii=False))}</code>"


def _type(schema: Mapping[str, Any]) -> str:
    """In words, as HTML."""
    if "$ref" in schema:
        return _link(schema)
    several = schema.get("anyOf") or schema.get("oneOf")
    if several:
        return " or ".join(dict.fromkeys(_type(one) for one in several))
    if "enum" in schema:
        return " | ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        kind = f"list of {_type(schema.get('items', {}))}"
    elif kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of {_type(schema['additionalProperties'])}"
    bounds = [f"{word} {schema[name]:g}" for name, word in BOUNDS.items() if name in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": "&gt;",
    "maximum": "≤",
    "exclusiveMaximum": "&lt;",
    "minLength": "characters ≥",
    "maxLength": "characters ≤",
    "minItems": "entries ≥",
    "maxItems": "entries ≤",
    "maxProperties": "entries ≤",
}


def _link(schema: Mapping[str, Any]) -> str:
    name = escape(str(schema["$ref"]).rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """``rows`` are HTML already."""
    yield '<div class="table"><table><thead><tr>'
    yield "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    yield "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"
