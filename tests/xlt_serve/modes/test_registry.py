"""A mode is its own file and a line in the registry: Python, HTTP and the command line find it there."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

import pytest
from starlette.testclient import TestClient

from xlt_serve import load, modes, types, wire
from xlt_serve.cli.main import main
from xlt_serve.errors import UsageError
from xlt_serve.modes import keywords
from xlt_serve.modes.base import CLASSIFY, ZERO_SHOT, Asked, Context, Mode, Reading
from xlt_serve.modes.plain import Plain, classified
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.runtime.steps import Steps
from xlt_serve.serving.app import create
from xlt_serve.serving.middleware import Gate, Guard
from xlt_serve.serving.settings import Environment
from xlt_serve.types import Prediction, Settings, option


@dataclass(frozen=True, slots=True)
class Laziness:
    laziness: int = option(0, "texts that are left out", ge=0)


class Lazy(Mode):
    """Reads every text but answers only those of an even number; a toy."""

    name = "lazy"
    options = Laziness

    def steps(self, context: Context, asked: Asked) -> Steps[list[Prediction]]:
        reading = Reading(context, self, asked)
        jobs = [job for job in reading.jobs() if job.index % 2 == 0]
        answers = yield from classified(context, jobs, asked.settings)
        out = {job.index: context.failed(self.name, "lazy", "not today") for job in reading.jobs()}
        for job, answer in zip(jobs, answers, strict=True):
            out[job.index] = context.prediction(self.name, answer.label, language=answer.language)
        return reading.in_order(out)


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(modes.MODES, Lazy.name, Lazy())


TEXTS = ["Die Mannschaft gewann das Finale.", "Ein Virus wurde entdeckt.", ""]


@pytest.mark.usefixtures("lazy")
def test_a_new_mode_goes_all_roads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classifier = load()
    expected = [p.to_dict() for p in classifier.predict(TEXTS, mode="lazy", laziness=3)]
    assert [(p["label"], p["mode"]) for p in expected] == [
        ("sports", "lazy"),
        (None, "lazy"),
        (None, "lazy"),
    ]
    assert [p["error"] and p["error"]["code"] for p in expected] == [None, "lazy", "empty"]

    gate = Gate()
    environment = Environment({"topics": "topics"}, state=tmp_path / "state")
    with TestClient(Guard(create(gate, environment), gate)) as client:
        answer = client.post("/classify", json={"texts": TEXTS, "mode": "lazy"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["predictions"] == expected

    lines = tmp_path / "texts.txt"
    lines.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    assert main(["predict", "--mode", "lazy", str(lines)]) == 0
    named = {"bundle": "topics", "version": classifier.bundle.manifest.version}
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [each | named for each in expected]

    table, scored = tmp_path / "texts.jsonl", tmp_path / "scored.jsonl"
    table.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    tolerant = ["--max-errors", "2"]  # of three rows
    assert main(["score", str(table), str(scored), "--mode", "lazy", "--quiet", *tolerant]) == 0
    rows = [json.loads(line) for line in scored.read_text().splitlines()]
    assert [(row["xlt_label"], row["xlt_mode"]) for row in rows] == [
        (each["label"], "lazy") for each in expected
    ]


def test_a_mode_that_is_not_registered_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mode='lazy': must be one of plain, translate, paired"):
        load().predict(TEXTS, mode="lazy")
    with pytest.raises(
        wire.Invalid, match="mode: Input should be 'plain', 'translate', 'paired' or"
    ):
        wire.parse(wire.ClassifyRequest, {"texts": TEXTS, "mode": "lazy"})


def test_types_and_schema_have_the_modes_that_are_registered() -> None:
    published = wire.schema()["$defs"]["ClassifyRequest"]["properties"]["mode"]["enum"]
    assert published == list(modes.names()) == list(get_args(types.Mode))
    assert all(mode.name == name for name, mode in modes.MODES.items())
    assert isinstance(modes.MODES["plain"], Plain)


def test_the_keywords_that_editors_know_are_those_that_there_are() -> None:
    shipped = [modes.MODES[name] for name in modes.names()]
    known = {name for mode in shipped for name in modes.option_names(mode)}
    values = {modes.keyword(mode) for mode in shipped if mode.options is not types.NoOptions}
    assert set(keywords.PredictKeywords.__annotations__) == known | values
    zero = modes.option_names(modes.MODES["zero_shot"]) - {"labels", "require_translation"}
    assert set(keywords.ZeroShotKeywords.__annotations__) == zero
    published = wire.schema()["$defs"]
    asked = set(published["ClassifyRequest"]["properties"]) - {"texts", "pairs"}
    assert set(keywords.ClassifyKeywords.__annotations__) == asked
    asked = set(published["ZeroShotRequest"]["properties"]) - {"texts", "labels"}
    assert set(keywords.ZeroShotRequestKeywords.__annotations__) == asked


def test_options_come_one_by_one_or_as_one_value() -> None:
    one = modes.settings("smoothed", samples=20, alpha=0.01, top_k=2)
    whole = modes.settings("smoothed", smoothing=Smoothing(samples=20, alpha=0.01), top_k=2)
    assert one == whole
    assert one.of(Smoothing).samples == 20
    assert modes.settings("plain", smoothing=Smoothing(20)) == modes.settings()  # another mode's


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"topk": 2}, TypeError, "mode plain has no option 'topk', did you mean 'top_k'"),
        ({"alpha": 0.5}, TypeError, "mode plain has no option 'alpha'"),
        ({"plain": True}, TypeError, "mode plain has no option 'plain'"),
        ({"mode": "smoothed", "smoothing": {"samples": 5}}, UsageError, "must be a Smoothing"),
        (
            {"mode": "smoothed", "smoothing": Smoothing(5), "samples": 50},
            UsageError,
            "smoothing and samples: say the same thing twice",
        ),
    ],
)
def test_no_option_is_left_out_in_silence(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load().predict(TEXTS, **given)


def test_options_have_names_of_their_own() -> None:
    """On the wire the options of all modes of a route lie side by side."""
    for route in (CLASSIFY, ZERO_SHOT):
        kinds = [Settings, *(modes.MODES[name].options for name in modes.names(route))]
        found = [each.name for kind in kinds for each in fields(kind)]
        assert len(found) == len(set(found))


def test_settings_that_do_not_fit_their_mode_are_refused_on_every_road() -> None:
    long = Settings(mode="smoothed", long="windows")
    with pytest.raises(UsageError, match="long=windows: has no smoothed form"):
        list(load().predict_batches([TEXTS], long))
    with pytest.raises(UsageError, match="mode='nope': must be one of"):
        list(load().predict_batches([TEXTS], Settings(mode="nope")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_k": 0}, "top_k=0: must be at least 1"),
        ({"max_length": 7}, "max_length=7: must be at least 8"),
        ({"abstain_below": 1.5}, r"abstain_below=1.5: must be between 0 and 1 \(inclusive\)"),
        ({"long": "cut"}, "long=cut: must be one of truncate, windows, error"),
        ({"mode": "smoothed", "alpha": 0}, "alpha=0: must be at least 1e-38 and less than 1"),
        ({"mode": "smoothed", "alpha": 1e-300}, "alpha=1e-300: must be at least 1e-38"),
        ({"mode": "smoothed", "alpha": 5e-324}, "alpha=5e-324: must be at least 1e-38"),
        ({"mode": "smoothed", "alpha": float("nan")}, "alpha=nan: must be at least 1e-38"),
        ({"mode": "smoothed", "radius": float("inf")}, "radius=inf: must be positive"),
        ({"mode": "smoothed", "radius": float("nan")}, "radius=nan: must be positive"),
        ({"mode": "smoothed", "radius": 1e19}, "radius=1e[+]19: must be positive and at most 1"),
        ({"mode": "smoothed", "scale": 1e20}, "scale=1e[+]20: must be between 1e-06 and 10000"),
        ({"mode": "smoothed", "scale": 1e308}, "scale=1e[+]308: must be between 1e-06 and 10000"),
        ({"mode": "smoothed", "scale": 5e-324}, "scale=5e-324: must be between 1e-06 and 10000"),
        ({"mode": "smoothed", "scale": float("inf")}, "scale=inf: must be between 1e-06"),
        ({"mode": "smoothed", "scale": float("nan")}, "scale=nan: must be between 1e-06"),
        ({"abstain_below": float("nan")}, "abstain_below=nan: must be between 0 and 1"),
        ({"mode": "smoothed", "seed": -1}, "seed=-1: must be at least 0"),
        ({"mode": "smoothed", "samples": 100_001}, "samples=100001: must be between 1 and 100000"),
        ({"mode": "zero_shot", "labels": ["a"], "scorer": "x"}, "scorer=x: must be one of nli"),
        ({"mode": "zero_shot", "labels": []}, "no labels"),
    ],
)
def test_ranges_hold_in_python_as_on_the_wire(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        modes.settings(**given)  # type: ignore[arg-type]
    body = {"texts": ["a"]} | given
    kind = wire.ClassifyRequest
    if body.get("mode") == "zero_shot":
        kind, _ = wire.ZeroShotRequest, body.pop("mode")
    with pytest.raises(wire.Invalid):
        wire.parse(kind, body)
