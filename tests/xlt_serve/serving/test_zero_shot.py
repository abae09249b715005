"""Labels that nobody trained for: against one pair at a time, and over HTTP."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from xlt_training.encoders import make_entailment as nli
from xlt_training.loop import model
from xlt_training.loop.types import Example

from tests.xlt_serve.serving.conftest import Start, valid
from xlt_serve import load, modes
from xlt_serve.errors import UsageError
from xlt_serve.modes.base import Asked
from xlt_serve.modes.templates import TEMPLATES
from xlt_serve.modes.zero_shot import Candidates, ZeroShot, decided, entailment
from xlt_serve.runtime.steps import RunRequest, drive
from xlt_serve.types import Prediction, Settings

TEXTS = ["the goal was in our match", "", "Suppe und Brot", "rain and wind with some snow"]
LABELS = ("sports", "food", "weather")


@pytest.fixture(scope="session")
def nli_bundle(
    tmp_path_factory: pytest.TempPathFactory, toy_data: Path, encoders: dict[str, Path]
) -> Path:
    """Made by the one command, on toy data with a tiny encoder and a projection of its own."""
    folder = tmp_path_factory.mktemp("nli")
    encoder = shutil.copytree(encoders["xlm-roberta"], folder / "encoder")
    width = json.loads((encoder / "config.json").read_text())["hidden_size"]
    torch.manual_seed(0)
    projection = torch.nn.Linear(width, 8).state_dict()
    save_file(projection, encoder / "projection.safetensors")
    nli.main(
        [
            *("--data", str(toy_data), "--out", str(folder / "nli"), "--work", str(folder / "run")),
            *("--encoder", str(encoder), "--minutes", "0", "--precision", "fp32"),
            *("train.epochs=1", "train.batch_size=16", "train.max_length=64"),
        ]
    )
    return folder / "nli"


def answers(bundle: Path, **options: Any) -> list[Prediction]:
    classifier = load(bundle)
    return classifier.zero_shot(TEXTS, LABELS, **options)


def test_entailment_is_that_of_every_pair_alone(nli_bundle: Path) -> None:
    classifier = load(nli_bundle)
    found = entailment(classifier.bundle)
    assert found is not None
    temperature = classifier.bundle.manifest.temperature("plain")
    template = "It is about {}, I think."
    got = answers(nli_bundle, scorer="nli", template=template)
    several = answers(nli_bundle, scorer="nli", template=template, multi_label=True)
    for text, one, many in zip(TEXTS, got, several, strict=True):
        if not text:
            assert one.error is not None
            assert one.error.code == "empty"
            continue
        rows = []
        for label in LABELS:
            (tokens,) = classifier.encoder.encode([(text, template.replace("{}", label))])
            rows.append(classifier.logits(tokens.pieces)[0] / temperature)  # type: ignore[union-attr]
        yes, no = np.array(rows)[:, found[0]], np.array(rows)[:, found[1]]
        expected = np.exp(yes) / np.exp(yes).sum()
        assert list(one.probabilities.values()) == pytest.approx(expected, abs=1e-5)
        assert one.label == LABELS[int(expected.argmax())]
        alone = np.exp(yes) / (np.exp(yes) + np.exp(no))
        assert list(many.probabilities.values()) == pytest.approx(alone, abs=1e-5)


def test_all_pairs_are_asked_for_at_once(nli_bundle: Path) -> None:
    asks: list[RunRequest] = []
    classifier = load(nli_bundle)

    def run(ask: RunRequest) -> Any:
        asks.append(ask)
        return classifier.runners.run(ask)

    asked = Settings(mode="zero_shot", options=Candidates(LABELS, scorer="nli"))  # type: ignore[arg-type]
    drive(classifier.steps(Asked(TEXTS, asked)), run)
    assert [len(ask.rows) for ask in asks] == [3 * 3]


def test_the_vector_is_the_encoders_as_it_was_through_its_projection(nli_bundle: Path) -> None:
    encoder = nli_bundle.parent / "encoder"
    untrained = model.build(str(encoder), ["no", "yes"], 64).eval()
    linear = load_file(encoder / "projection.safetensors")
    classifier = load(nli_bundle)
    for text in (TEXTS[0], TEXTS[3]):
        (tokens,) = classifier.encoder.encode([text])
        found = classifier.runners.run(RunRequest("plain", tokens.pieces))["vector"][0]  # type: ignore[union-attr]
        with torch.inference_mode():
            last, _ = untrained.encode(untrained.batch([Example(text, "no", "en")]))
        expected = linear["weight"] @ last[0, 0] + linear["bias"]
        assert found == pytest.approx(expected.numpy(), abs=1e-4)


def test_similarity_is_the_cosine_of_the_vectors(nli_bundle: Path) -> None:
    classifier = load(nli_bundle)

    def vector(text: str) -> np.ndarray:
        ids = classifier.encoder.ids([text])
        fitted = classifier.encoder.fit(ids, 64, "truncate")
        row = classifier.runners.run(RunRequest("plain", fitted.pieces))["vector"][0]  # type: ignore[union-attr]
        return np.asarray(row / np.linalg.norm(row))

    labels = [vector(f"This text is about {label}.") for label in LABELS]
    got = answers(nli_bundle, scorer="similarity", template="This text is about {}.")
    for text, one in zip(TEXTS, got, strict=True):
        if text:
            cosines = np.array([label @ vector(text) for label in labels])
            expected = np.exp(cosines / 0.05) / np.exp(cosines / 0.05).sum()
            assert list(one.probabilities.values()) == pytest.approx(expected, abs=1e-4)


def test_hypotheses_are_made_once_for_all_texts() -> None:
    """A thousand texts may meet a hundred labels of two thousand characters each."""
    options = Candidates(("Sport", "Politik"), template={"de": "Es geht um {}.", "*": "About {}."})
    settings = Settings("zero_shot", options=options)
    items = ["Das Spiel wurde gestern gewonnen.", "The match was won last night.", "Tor!"]
    texts, _ = ZeroShot()._read(load().context, items * 3, settings)
    assert len(texts) == 9
    assert len({id(hypothesis) for text in texts for hypothesis in text.hypotheses}) == 4


def test_the_bundle_says_which_template_and_scorer_are_better(nli_bundle: Path) -> None:
    bundle = load(nli_bundle).bundle
    zero = {"scorer": "similarity", "template": {"de": "Es geht um {}.", "*": "About {}."}}
    made = replace(bundle, manifest=replace(bundle.manifest, checks={"zero_shot": zero}))
    found = decided(made, Candidates(("Sport",)))
    assert found.scorer == "similarity"
    assert found.hypotheses("de") == ("Es geht um Sport.",)
    asked = decided(made, Candidates(("Sport",), template="{}!", scorer="nli"))
    assert asked.scorer == "nli"
    assert asked.hypotheses("de") == ("Sport!",)


def test_native_templates_are_those_of_the_texts_language() -> None:
    options = Candidates(("Sport",), template="native")
    assert options.hypotheses("de") == ("In diesem Text geht es um Sport.",)
    assert options.hypotheses("zh") == ("这段文字是关于Sport的。",)
    assert options.hypotheses("xx") == options.hypotheses(None) == ("This text is about Sport.",)
    assert len(TEMPLATES) == 21
    assert all(template.count("{}") == 1 for template in TEMPLATES.values())


def test_templates_go_by_language() -> None:
    options = Candidates(("Sport",), template={"de": "Es geht um {}.", "*": "About {}."})
    assert options.hypotheses("de") == ("Es geht um Sport.",)
    assert options.hypotheses("fr") == options.hypotheses(None) == ("About Sport.",)
    assert Candidates(("Sport",), template={"de": "{}!"}).hypotheses("en") == (
        "This text is about Sport.",
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": ()}, "at least one"),
        ({"labels": ("a", "a")}, "twice"),
        ({"labels": ("a", " ")}, "blank"),
        ({"labels": ("a",), "template": "no place"}, "must have one"),
        ({"labels": ("a",), "template": {"de": "{} {}"}}, "must have one"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Candidates(**options)


def test_the_command_wrote_what_it_measured(nli_bundle: Path) -> None:
    manifest = json.loads((nli_bundle / "bundle.json").read_text())
    zero = manifest["checks"]["zero_shot"]
    assert set(zero["languages"]) == {"en", "de"}
    best = max(nli.WAYS, key=lambda way: sum(row[way] for row in zero["languages"].values()))
    assert zero["scorer"] == nli.WAYS[best][0]
    assert (zero["template"] == "This text is about {}.") == (nli.WAYS[best][1] == "english")
    assert set(manifest["scores"]["dev"]) == {"en", "de"} == set(manifest["checks"]["xnli"])
    assert "| SIB-200 dev, zero-shot |" in nli.report(load(nli_bundle).bundle)


def test_over_http(start: Start, nli_bundle: Path) -> None:
    client = start(bundles={"topics": "topics", "nli": str(nli_bundle)})
    asked = valid("ZeroShotRequest", {"texts": TEXTS, "labels": list(LABELS), "scorer": "nli"})
    body = valid("Answer", client.post("/zero_shot", json=asked).json())
    assert body["bundle"]["name"] == "nli"  # the one that can, not the first
    expected = [p.to_dict() for p in answers(nli_bundle, scorer="nli")]
    assert body["predictions"] == expected
    top = client.post("/zero_shot", json=asked | {"top_k": 1, "abstain_below": 1}).json()
    assert top["predictions"][0]["label"] is None
    assert len(top["predictions"][0]["probabilities"]) == 1
    refused = client.post("/zero_shot", json=asked | {"bundle": "topics"})
    assert refused.status_code == 422
    assert "entailment" in valid("Error", refused.json())["error"]["message"]


@pytest.mark.parametrize("scorer", ["nli", "similarity"])
def test_of_a_long_text_no_more_is_kept_than_is_read(nli_bundle: Path, scorer: str) -> None:
    classifier = load(nli_bundle)
    long, settings = "goal " * 5000, modes.settings("zero_shot", labels=LABELS, scorer=scorer)
    [kept], _ = ZeroShot()._read(classifier.context, [long], settings)
    assert kept.count >= 5000
    assert len(kept.ids) == classifier.encoder.max_length + 1
    [answer] = classifier.zero_shot([long], LABELS, scorer=scorer)
    assert answer.tokens == kept.count
    assert answer.truncated
