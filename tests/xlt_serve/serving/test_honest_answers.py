"""No wrong answer under a good name, over HTTP: damaged weights, numbers out of range, panics."""

from __future__ import annotations

import json
import math
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import damage
from tests.damage import WORD
from tests.xlt_serve.serving.conftest import Local, Start, valid
from xlt_serve import bundle as bundles
from xlt_serve.serving import settings
from xlt_serve.text import patterns
from xlt_serve.text.tokens import LARGEST

GOOD = "The team won the final match of the league."
BAD = f"The {WORD} won the final match of the league."
GERMAN = "Die Mannschaft gewann das Finale."


@pytest.fixture(scope="module")
def holed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Local:
    """Shipped bundles with a hole in the embeddings of one word, and a judge that has it too."""
    folder = tmp_path_factory.mktemp("holed")
    nan = float("nan")
    made = {
        "topics": damage.without_word(bundles.load("topics"), folder / "topics", nan),
        "paired": damage.without_word(bundles.load("topics-paired"), folder / "paired", nan),
        "judge": damage.judge(folder / "judge", math.inf),
    }
    return start(bundles={name: str(bundle.path) for name, bundle in made.items()})


@pytest.mark.parametrize(
    "asked",
    [
        {"mode": "plain"},
        {"mode": "plain", "long": "windows"},
        {"mode": "smoothed", "samples": 50, "radius": 0.02},
        {"mode": "smoothed", "samples": 50, "noise": "uniform", "scale": 0.1},
        {"mode": "translate", "translations": [GOOD, BAD, GOOD]},
        {"mode": "paired", "translations": [GOOD, BAD, GOOD], "bundle": "paired"},
    ],
    ids=str,
)
def test_a_text_without_a_finite_answer_fails_alone(holed: Local, asked: dict[str, Any]) -> None:
    answer = holed.post("/classify", json={"texts": [GOOD, BAD, GOOD], **asked})
    assert answer.status_code == 200, answer.text
    first, second, third = valid("Answer", answer.json())["predictions"]
    assert first["error"] is None
    assert third["error"] is None
    assert second["label"] is None
    assert second["error"]["code"] == "not_finite"
    assert second["probabilities"] == {}
    assert second.get("certificate") is None
    assert "votes" not in second


def test_nor_has_zero_shot(holed: Local) -> None:
    for scorer in ("nli", "similarity"):
        body = {"texts": [GOOD, BAD], "labels": ["sports", "health"], "scorer": scorer}
        answer = holed.post("/zero_shot", json=body | {"bundle": "judge"})
        assert answer.status_code == 200, answer.text
        first, second = valid("Answer", answer.json())["predictions"]
        assert first["label"] in body["labels"]
        assert second["error"]["code"] == "not_finite"


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 1e20, "radius": 1e19, "seed": 1},  # certified a radius of 1.17e19
        {"scale": 1e308},
        {"scale": 5e-324},
        {"scale": 5e-324, "radius": 1e-300},
        {"radius": 1e19},
        {"alpha": 1e-300},
        {"alpha": 5e-324},
        {"alpha": 1},
        {"samples": 10**9},
        {"samples": 10**400},
        {"noise": "uniform", "scale": 1e39, "radius": 1e38},
    ],
    ids=str,
)
def test_what_would_leave_the_floats_is_refused(service: Local, options: dict[str, Any]) -> None:
    body = json.dumps({"texts": [GERMAN], "mode": "smoothed", **options})
    answer = service.post("/classify", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    error = valid("Error", answer.json())["error"]
    assert error["code"] == "invalid"
    assert {detail["field"] for detail in error["details"]} <= options.keys()


@pytest.mark.parametrize("scale", [1e-6, 1e4])
@pytest.mark.parametrize("alpha", [1e-38, 0.999])
def test_the_ends_of_all_ranges_are_answered(service: Local, scale: float, alpha: float) -> None:
    body = {"texts": [GERMAN], "mode": "smoothed", "samples": 130, "seed": 1, "radius": 1e-9}
    answer = service.post("/classify", json=body | {"scale": scale, "alpha": alpha})
    assert answer.status_code == 200, answer.text
    [found] = valid("Answer", answer.json())["predictions"]
    assert found["error"] is None
    if scale == 1e-6:  # float32 rounds more than this noise moves
        assert found["certificate"] is None


def panicking(folder: Path) -> Path:
    """The shipped bundle with a regular expression that gives up on some texts."""
    shipped = bundles.load("topics")
    shutil.copytree(shipped.path, folder)
    file = folder / shipped.manifest.tokenizer
    content = json.loads(file.read_text(encoding="utf-8"))
    evil = {"type": "Replace", "pattern": {"Regex": "(x+)+$"}, "content": "x"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [content["normalizer"], evil]}
    file.write_text(json.dumps(content), encoding="utf-8")
    return bundles.save(folder, shipped.manifest).path


def test_a_panic_of_the_tokenizer_is_the_error_of_its_text(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(patterns.TRUST, "1")
    service = start(bundles={"topics": str(panicking(tmp_path / "panicking"))})
    texts = [GOOD, "x" * 40 + "!", GERMAN]
    for mode in ("plain", "smoothed"):
        answer = service.post("/classify", json={"texts": texts, "mode": mode})
        assert answer.status_code == 200, answer.text
        first, second, third = valid("Answer", answer.json())["predictions"]
        assert first["error"] is third["error"] is None
        assert second["error"]["code"] == "not_tokenised"


def test_draws_of_a_long_text_take_little_memory(start: Start, tmp_path: Path) -> None:
    """99 kB of words that have synonyms took 2.3 GB; with the least alpha that there is, and more
    draws than are ever made at once."""
    table = tmp_path / "en.json"
    table.write_text(json.dumps({"match": ["game"], "team": ["group", "crew"], "won": ["gained"]}))
    given = settings.read({"XLT_SYNONYMS": settings.joined({"en": table})})
    service = start(synonyms=given.synonyms)
    short = {
        "texts": [GOOD], "mode": "smoothed", "noise": "synonym", "words": 1, "language": "en",
        "seed": 1, "samples": 300, "alpha": 1e-38,
    }  # fmt: skip
    assert service.post("/classify", json=short).status_code == 200
    text = ("match team won " * LARGEST)[: LARGEST - 1000]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = service.post("/classify", json=short | {"texts": [text]})
    assert answer.status_code == 200, answer.text
    [found] = answer.json()["predictions"]
    assert found["error"] is None
    assert found["tokens"] > 10_000
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 150_000, f"{grown} kB"
