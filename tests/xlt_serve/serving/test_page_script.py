"""What the page does with real answers: its own scripts, run by Node over a document of few parts."""

from __future__ import annotations

import csv
import io
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.xlt_serve.serving.conftest import Local, Start, valid
from xlt_serve.bundle import MANIFEST
from xlt_serve.bundle import MODELS as SHIPPED
from xlt_serve.serving.admission import Limits
from xlt_serve.serving.app import PAGE

NODE = shutil.which("node")
TEXTS = [
    "Die Mannschaft gewann das Finale.",
    "",
    '=1+1 "quoted", and\tmore',
    "فاز الفريق بالمباراة",
]
CLASSIFY, MODELS = "classify", "models"


def played(answers: dict[str, Any], steps: list[dict[str, Any]], **more: Any) -> Any:
    if NODE is None:
        pytest.skip("no Node here")
    asked = json.dumps({"answers": answers, "steps": steps, **more})
    script = Path(__file__).with_name("page.js")
    done = subprocess.run(
        [NODE, str(script), str(PAGE)], input=asked, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ok(body: Any, **more: Any) -> dict[str, Any]:
    return {"status": 200, "body": body, **more}


@pytest.fixture(scope="module")
def two(start: Start) -> Local:
    return start(bundles={"mood": "topics", "both": "topics-paired"}, limits=Limits(wait=60.0))


@pytest.fixture(scope="module")
def models(two: Local) -> Any:
    return valid("Models", two.get("/models").json())


def answer(client: Local, body: dict[str, Any]) -> Any:
    return valid("Answer", client.post("/classify", json=body).json())


def table_rows(element: Any) -> list[list[str]]:
    """Of the first table in it, the head too."""
    tag, _, inner = element
    if tag == "tr":
        return [[cell[2] for cell in inner]]
    return [row for child in inner if isinstance(child, list) for row in table_rows(child)]


def words(element: Any) -> str:
    inner = element[2]
    return (
        inner
        if isinstance(inner, str)
        else " ".join(child if isinstance(child, str) else words(child) for child in inner)
    )


def test_heading_and_languages_are_the_bundles(models: Any) -> None:
    [seen] = played({MODELS: [ok(models)]}, [])["seen"]
    assert (seen["heading"], seen["title"]) == ("mood", "mood · xlt-serve")
    manifest = models["models"][0]["manifest"]
    assert all(label in seen["about"] for label in manifest["labels"])
    scores = manifest["scores"]["dev"]
    worst, *_, best = sorted(scores, key=lambda language: scores[language]["accuracy"])
    low, high = (f"{scores[one]['accuracy']:.1%} ({one})" for one in (worst, best))
    expected = f"Judged in {len(scores)} languages: accuracy {low} to {high}."
    assert seen["judged"] == expected.replace("%", " %")
    rows = {row[0]: row[1:] for row in table_rows(seen["languages"])}
    assert len(rows) == len(scores) + 1
    assert rows["German"] == [f"{scores['de']['accuracy']:.1%}".replace("%", " %"), "99", "dev"]
    version = manifest["version"]
    assert seen["foot"] == f"mood {version} · API · metrics"


def test_a_bundle_that_nobody_judged_says_so(models: Any) -> None:
    made = json.loads(json.dumps(models))
    manifest = made["models"][0]["manifest"]
    manifest |= {"scores": {}, "checks": {"trimmed": {"languages": ["en", "de"]}}}
    manifest["languages"] = ["en"]
    [seen] = played({MODELS: [ok(made)]}, [])["seen"]
    assert seen["judged"] == (
        "Nobody has judged it in any language yet. Its vocabulary was kept for en, de."
    )
    assert table_rows(seen["languages"])[1][:2] == ["English", "not judged"]
    # Of odd values, and where the service left the manifest out, there is a page all the same.
    for odd in ({}, {"scores": {"dev": {"en": 7, "de": None}, "test": None}, "labels": ["a"]}):
        made["models"][0]["manifest"] = odd
        [seen] = played({MODELS: [ok(made)]}, [])["seen"]
        assert seen["heading"] == "mood"


def shown(manifest: dict[str, Any]) -> tuple[list[str], str]:
    """The languages of the examples, and what stands in the empty field."""
    models = {"models": [{"name": "a", "manifest": manifest}]}
    [seen] = played({MODELS: [ok(models)]}, [])["seen"]
    return [language for language, *_ in seen["examples"]], seen["placeholder"]


def judged(*languages: str) -> dict[str, Any]:
    return {"dev": {language: {"accuracy": 0.5, "count": 9} for language in languages}}


def kept(*languages: str) -> dict[str, Any]:
    return {"trimmed": {"languages": list(languages)}}


def test_examples_are_of_languages_that_the_bundle_knows() -> None:
    shop = {"scores": judged("de", "en", "fr"), "checks": kept("en", "de"), "languages": ["en"]}
    assert shown(shop) == (["de", "en"], "A text in German or English …")
    assert shown({"checks": kept("en", "de")}) == (["en", "de"], "A text in English or German …")
    assert shown({"scores": judged("pt-BR")})[0] == ["pt-BR"]
    assert shown({"languages": ["en"]}) == (["en"], "A text in English …")
    assert shown({"scores": judged("yo")}) == ([], "A text in Yoruba …")  # no sentence in it
    assert shown({}) == ([], "A text …")
    many = shown({"scores": judged("ar", "bg", "de", "el", "en", "es", "fr", "hi")})[1]
    assert (
        many == "A text in Arabic, Bulgarian, German, Greek, English, Spanish or 2 more languages …"
    )


def test_an_example_is_asked_and_changes_with_the_model() -> None:
    pair = {"labels": ["same", "other"], "pair": True, "languages": ["de"]}
    models = [
        {"name": "a", "manifest": {"languages": ["en", "it"]}},
        {"name": "b", "manifest": pair},
    ]
    steps: list[dict[str, Any]] = [
        {"press": "italiano"},
        {"set": {"model": "b"}, "change": "model"},
        {"press": "Deutsch"},
    ]
    found = played({MODELS: [ok({"models": models})]}, steps)
    first, _, after, _ = found["seen"]
    assert [name for _, name, _ in first["examples"]] == ["English", "italiano"]
    assert [name for _, name, _ in after["examples"]] == ["Deutsch"]
    _, one, two = (request["body"] for request in found["requests"])
    assert one["texts"] == [first["examples"][1][2]]
    [[text, second]] = two["pairs"]
    assert text == after["examples"][0][2] != second


def test_every_language_of_the_shipped_bundle_has_an_example() -> None:
    manifest = json.loads((SHIPPED / "topics" / MANIFEST).read_text(encoding="utf-8"))
    assert shown(manifest)[0] == list(manifest["scores"]["dev"])


def test_results_go_when_the_model_changes(two: Local, models: Any) -> None:
    text = TEXTS[0]
    first = answer(two, {"texts": [text], "bundle": "mood"})
    steps: list[dict[str, Any]] = [
        {"set": {"text": text}, "go": True},
        {"set": {"model": "both"}, "change": "model"},
    ]
    found = played({MODELS: [ok(models)], CLASSIFY: [ok(first)]}, steps)
    _, shown, after = found["seen"]
    assert "sports" in words(shown["answers"])
    assert shown["status"].startswith("sports, ")
    assert (after["heading"], after["status"], words(after["answers"])) == ("both", "", "")
    body = found["requests"][1]["body"]
    assert valid("ClassifyRequest", body) == {"texts": [text], "bundle": "mood"}


def test_an_answer_that_comes_after_the_change_is_not_shown(two: Local, models: Any) -> None:
    first = answer(two, {"texts": [TEXTS[0]]})
    steps: list[dict[str, Any]] = [
        {"set": {"text": TEXTS[0]}, "go": True},
        {"set": {"model": "both"}, "change": "model"},
        {"release": True},
    ]
    _, waiting, changed, late = played(
        {MODELS: [ok(models)], CLASSIFY: [ok(first, held=True)]}, steps
    )["seen"]
    assert waiting["busy"]
    assert not changed["busy"]
    assert words(late["answers"]) == ""
    assert late["foot"].startswith("both ")


def test_votes_are_votes(two: Local, models: Any) -> None:
    asked = {"texts": [TEXTS[0]], "bundle": "mood", "mode": "smoothed"}
    made = answer(two, asked | {"samples": 50, "seed": 7, "radius": 0.02})
    steps: list[dict[str, Any]] = [{"mode": "smoothed"}, {"set": {"text": TEXTS[0]}, "go": True}]
    found = played({MODELS: [ok(models)], CLASSIFY: [ok(made)]}, steps)
    [prediction] = made["predictions"]
    shown = words(found["seen"][-1]["answers"])
    most = max(prediction["votes"].values())
    assert f"votes {most} of {prediction['draws']}" in shown
    bars = shown.partition("language")[0]
    assert "%" not in bars
    assert all(f"{label}  {count}" in bars or f"{label}   {count}" in bars
               for label, count in prediction["votes"].items())  # fmt: skip
    assert found["seen"][-1]["status"] == f"sports, {most} of {prediction['draws']} votes"
    assert found["requests"][1]["body"] == asked


def test_many_lines_are_a_table_and_a_file(two: Local, models: Any) -> None:
    texts = [text for text in TEXTS if text.strip()]
    made = answer(two, {"texts": texts, "bundle": "mood", "abstain_below": 0.9})
    made["predictions"][1]["warning"] = "the vocabulary was kept for en"
    steps: list[dict[str, Any]] = [
        {"set": {"text": "\n\n".join(texts), "lines": True}, "go": True},
        {"press": "Download CSV"},
    ]
    found = played({MODELS: [ok(models)], CLASSIFY: [ok(made)]}, steps)
    assert found["requests"][1]["body"]["texts"] == texts
    shown = found["seen"][1]
    head, *rows = table_rows(shown["answers"])
    assert head == ["#", "text", "label", "probability", "language", "note"]
    assert [row[1] for row in rows] == texts
    for row, one in zip(rows, made["predictions"], strict=True):
        assert row[2] == (one["label"] or "")
        assert row[3] == f"{max(one['probabilities'].values()):.1%}".replace("%", " %")
    assert "the vocabulary was kept for en" in rows[1][5]
    assert shown["status"] == "3 of 3 texts"
    [file] = found["downloads"]
    assert file["name"] == "mood.csv"
    assert file["text"].startswith("\ufeff")
    read = list(csv.DictReader(io.StringIO(file["text"].removeprefix("\ufeff"), newline="")))
    assert [row["text"] for row in read] == [texts[0], "'" + texts[1], texts[2]]
    for row, one in zip(read, made["predictions"], strict=True):
        assert float(row["probability"]) == max(one["probabilities"].values())
        assert (row["votes"], row["tokens"]) == ("", str(one["tokens"]))


def test_more_lines_than_a_request_takes_are_several(two: Local, models: Any) -> None:
    texts = [f"goal number {number}" for number in range(450)]
    parts = [answer(two, {"texts": texts[n : n + 200]}) for n in (0, 200, 400)]
    steps: list[dict[str, Any]] = [{"set": {"text": "\n".join(texts), "lines": True}, "go": True}]
    found = played({MODELS: [ok(models)], CLASSIFY: [ok(part) for part in parts]}, steps)
    assert [len(one["body"]["texts"]) for one in found["requests"][1:]] == [200, 200, 50]
    _, *rows = table_rows(found["seen"][-1]["answers"])
    assert [row[1] for row in rows] == texts
    # One that fails costs nothing of what was answered before it.
    refused = {"status": 429, "body": {"error": {"message": "too much is waiting"}}}
    found = played({MODELS: [ok(models)], CLASSIFY: [ok(parts[0]), refused]}, steps)
    last = found["seen"][-1]
    assert len(table_rows(last["answers"])) == 201
    assert "too much is waiting" in words(last["answers"])
    assert last["status"] == "too much is waiting"
    assert not last["busy"]
    lost = {"status": 0, "lost": True}
    last = played({MODELS: [ok(models)], CLASSIFY: [ok(parts[0]), lost]}, steps)["seen"][-1]
    assert len(table_rows(last["answers"])) == 201
    assert "does not answer" in last["status"]


def test_errors_of_items_and_no_text_at_all(two: Local, models: Any) -> None:
    empty = answer(two, {"texts": [""], "bundle": "mood"})
    steps: list[dict[str, Any]] = [
        {"go": True},
        {"set": {"lines": True, "text": " \n "}, "go": True},
    ]
    found = played({MODELS: [ok(models)], CLASSIFY: [ok(empty)]}, steps)
    assert "at least one visible character" in words(found["seen"][1]["answers"])
    assert "There is no text yet." in words(found["seen"][2]["answers"])
    assert len(found["requests"]) == 2


def test_a_service_with_keys(models: Any) -> None:
    needed = {"status": 401, "body": {"error": {"message": "a key is needed"}}}
    steps: list[dict[str, Any]] = [
        {"set": {"key": "k" * 16}, "change": "key"},
        {"follow": "docs"},
    ]
    answers = {MODELS: [needed, ok(models)], "docs": [ok("<h1>routes</h1>")]}
    found = played(answers, steps)
    assert "needs an API key" in found["seen"][0]["about"]
    assert found["seen"][1]["heading"] == "mood"
    assert found["requests"][-1]["headers"]["Authorization"] == "Bearer " + "k" * 16
    assert found["downloads"] == [{"name": "location", "text": "<h1>routes</h1>"}]


CELLS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    '"',
    'a "b", c',
    "a\nb",
    " a ",
    ";",
    "＝1",
    "'",
    "\r",
    "",
]


def test_csv_is_read_back_as_it_was_and_no_cell_is_a_formula() -> None:
    generator = random.Random(0)
    characters = "=+-@ \t\r\n\",;'ab é٣你\u2028\ufeff\x00😀"
    odd = ["".join(generator.choices(characters, k=generator.randrange(6))) for _ in range(900)]
    cells = CELLS * 10 + odd
    generator.shuffle(cells)
    rows = [cells[start : start + 4] for start in range(0, len(cells), 4)]
    call = {"name": "csv", "code": "rows => csv(rows)", "given": [rows]}
    text = played({}, [{"call": call}])["result"]["csv"]
    read = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")))
    formula = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
    expected = [["'" + one if one.startswith(formula) else one for one in row] for row in rows]
    assert read == expected


def test_a_service_that_is_not_there_yet_says_so() -> None:
    starting = {"status": 503, "body": {"error": {"message": "is being loaded"}}}
    assert played({MODELS: [starting]}, [])["seen"][0]["about"] == "is being loaded"
