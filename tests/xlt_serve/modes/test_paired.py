"""Prediction with translations: what is asked of the graphs, what the answer says, and why not."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.xlt_serve.translation.engines import Faulty, Shouting
from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes.base import Asked
from xlt_serve.runtime.graph_io import PairedRow
from xlt_serve.runtime.steps import RunRequest, TranslateRequest
from xlt_serve.text.tokens import Piece
from xlt_serve.translation.cache import TranslationCache
from xlt_serve.translation.router import Engine, Router
from xlt_serve.translation.translators import Translators
from xlt_serve.types import Outcome, Prediction, Settings, Translation, Untranslated

GERMAN = "Das Spiel der Mannschaft war heute sehr gut."
ENGLISH = "The team played a very good match today."


def crash(texts: list[str]) -> list[str]:
    raise OSError("the engine is on fire")


def with_engine(bundle: Bundle, engine: Any) -> Classifier:
    router = Router({engine.name: Engine(engine, timeout=1)}, cache=TranslationCache(entries=0))
    return Classifier(bundle, translators=Translators(router, 5.0))


@pytest.fixture(scope="module")
def paired(graph_bundles: dict[str, Bundle]) -> Classifier:
    return with_engine(graph_bundles["xlm-roberta"], Shouting())


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(np.asarray(logits, dtype=np.float64))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def by_hand(classifier: Classifier, text: str, translation: str, temperature: float = 1.0) -> Any:
    """The graph alone on the two texts; the mean of both streams' probabilities, and λ."""
    target, source = (
        np.array([tokens.pieces[0].ids])  # type: ignore[union-attr]
        for tokens in classifier.encoder.encode([text, translation])
    )
    session = classifier.runners.of("paired").session
    feeds = {
        "input_ids": target,
        "attention_mask": np.ones_like(target),
        "source_ids": source,
        "source_mask": np.ones_like(source),
    }
    if "token_type_ids" in session.inputs:
        feeds["token_type_ids"] = np.zeros_like(target)
        feeds["source_type_ids"] = np.zeros_like(source)
    out = session.run(feeds)
    streams = [softmax(out[name] / temperature) for name in ("target_logits", "source_logits")]
    return (streams[0][0] + streams[1][0]) / 2, float(out["ratio"][0])


@pytest.mark.parametrize("name", ["xlm-roberta", "bert"])
def test_the_answer_is_the_mean_of_both_streams(
    graph_bundles: dict[str, Bundle], name: str
) -> None:
    classifier = with_engine(graph_bundles[name], Shouting())
    texts = [GERMAN, "Suppe und Brot", " ".join(["Es regnet"] * 8)]
    answers = classifier.predict(texts, mode="paired", language="de")
    for text, answer in zip(texts, answers, strict=True):
        expected, ratio = by_hand(classifier, text, text.upper())
        np.testing.assert_allclose(list(answer.probabilities.values()), expected, atol=1e-5)
        assert answer.mode == "paired"
        assert answer.pairing is not None
        assert answer.pairing.mixed is True
        assert answer.pairing.ratio == pytest.approx(ratio, abs=1e-5)
        assert 0 <= ratio <= 0.5
        assert answer.pairing.translation == text.upper()
        assert (answer.pairing.translator, answer.pairing.quality) == ("shouting", 0.5)
        assert answer.label == classifier.labels[int(expected.argmax())]


def test_its_own_temperature_calibrates_it(
    graph_bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    import shutil
    from dataclasses import replace

    folder = tmp_path / "warm"
    shutil.copytree(graph_bundles["xlm-roberta"].path, folder)
    manifest = replace(
        graph_bundles["xlm-roberta"].manifest,
        calibration={
            "plain": {"temperature": 1.0},
            "paired": {"temperature": 2.5, "abstain_below": 0.99},
        },
    )
    classifier = with_engine(bundles.save(folder, manifest), Shouting())
    (answer,) = classifier.predict([GERMAN], mode="paired", language="de")
    expected, _ = by_hand(classifier, GERMAN, GERMAN.upper(), temperature=2.5)
    np.testing.assert_allclose(list(answer.probabilities.values()), expected, atol=1e-5)
    assert answer.abstained == "confidence"


def test_batches_change_nothing(paired: Classifier) -> None:
    texts = [f"{'Regen und Schnee ' * (n % 5 + 1)}{n}" for n in range(12)]
    together = paired.predict(texts, mode="paired", language="de")
    small = Classifier(paired.bundle, budget=16, translators=paired.translators)
    others = small.predict(texts, mode="paired", language="de")
    for one, other in zip(together, others, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
        assert one.pairing is not None
        assert other.pairing is not None
        assert one.pairing.ratio == pytest.approx(other.pairing.ratio, abs=1e-5)


def test_a_text_in_the_source_language_is_its_own_pair(paired: Classifier) -> None:
    (answer,) = paired.predict([ENGLISH], mode="paired")
    assert answer.language == "en"
    assert answer.pairing is not None
    assert (answer.pairing.mixed, answer.pairing.translator) == (True, "same")
    assert answer.pairing.translation == ENGLISH
    expected, _ = by_hand(paired, ENGLISH, ENGLISH)
    np.testing.assert_allclose(list(answer.probabilities.values()), expected, atol=1e-5)


def test_the_clients_translation_wins(graph_bundles: dict[str, Bundle]) -> None:
    engine = Shouting()
    classifier = with_engine(graph_bundles["xlm-roberta"], engine)
    answers = classifier.predict(
        [GERMAN, GERMAN], mode="paired", language="de", translations=[ENGLISH, None]
    )
    assert [a.pairing.translator for a in answers if a.pairing] == ["client", "shouting"]
    expected, _ = by_hand(classifier, GERMAN, ENGLISH)
    np.testing.assert_allclose(list(answers[0].probabilities.values()), expected, atol=1e-5)
    assert engine.calls == [[GERMAN]]


def test_translate_test_classifies_the_translation_alone(paired: Classifier) -> None:
    (answer,) = paired.predict([GERMAN], mode="translate", language="de", translations=[ENGLISH])
    (plain,) = paired.predict([ENGLISH])
    assert answer.probabilities == pytest.approx(plain.probabilities, abs=1e-6)
    assert (answer.mode, answer.language, answer.tokens) == ("translate", "de", plain.tokens)
    told = answer.to_dict()
    assert told["translation"] == ENGLISH
    assert told["translator"] == "client"
    assert "mixed" not in told


@pytest.mark.parametrize("mode", ["paired", "translate"])
def test_without_a_translation_the_plain_answer_says_why(
    graph_bundles: dict[str, Bundle], mode: str
) -> None:
    classifier = with_engine(graph_bundles["xlm-roberta"], Faulty(say=crash))
    (answer,) = classifier.predict([GERMAN], mode=mode, language="de")
    (plain,) = classifier.predict([GERMAN], language="de")
    assert answer.probabilities == pytest.approx(plain.probabilities, abs=1e-6)
    assert answer.mode == "plain"  # what was really done
    told = answer.to_dict()
    assert told["reason"] == {"code": "failed", "message": "faulty: the engine is on fire"}
    assert told["translation"] is None
    assert told.get("mixed", False) is False
    assert told["error"] is None
    json.dumps(told)


def test_an_unknown_language_is_a_reason(paired: Classifier) -> None:
    (answer,) = paired.predict(["Paris"], mode="paired")
    assert answer.language is None
    assert answer.pairing is not None
    assert answer.pairing.mixed is False
    assert answer.pairing.reason is not None
    assert answer.pairing.reason.code == "language"


def test_without_translators_only_given_and_source_texts_are_mixed(
    graph_bundles: dict[str, Bundle],
) -> None:
    classifier = Classifier(graph_bundles["xlm-roberta"])
    answers = classifier.predict(
        [GERMAN, GERMAN, ENGLISH], mode="paired", translations=[None, ENGLISH, None]
    )
    assert [a.pairing.mixed for a in answers if a.pairing] == [False, True, True]
    assert answers[0].pairing.reason.code == "no_translator"  # type: ignore[union-attr]


def test_who_requires_a_translation_gets_an_error_and_neighbours_don_t(
    graph_bundles: dict[str, Bundle],
) -> None:
    classifier = with_engine(graph_bundles["xlm-roberta"], Faulty(say=crash))
    failed, fine = classifier.predict([GERMAN, ENGLISH], mode="paired", require_translation=True)
    assert failed.error is not None
    assert failed.error.code == "untranslated"
    assert "on fire" in failed.error.message
    assert fine.error is None
    assert fine.pairing is not None


def test_poisoned_items_and_translations_fail_alone(graph_bundles: dict[str, Bundle]) -> None:
    engine = Shouting()
    classifier = with_engine(graph_bundles["xlm-roberta"], engine)
    answers = classifier.predict(
        [GERMAN, "", "a\ud800", GERMAN, GERMAN, 7],
        mode="paired",
        language="de",
        translations=[None, None, None, 5, " ", None],
    )
    codes = [answer.error.code if answer.error else None for answer in answers]
    assert codes == [None, "empty", "not_text", "translation", "translation", "not_text"]
    assert engine.calls == [[GERMAN]]


def test_a_translation_that_tokenises_to_nothing_is_none(
    paired: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = paired.encoder.encode

    def nothing(items: Any, *rest: Any) -> Any:
        """As tokenizers that drop invisible characters do."""
        empty = ItemError("empty", "", "has no token")
        tokens = encode(items, *rest)
        return [empty if i == "ghost" else t for i, t in zip(items, tokens, strict=True)]

    monkeypatch.setattr(paired.encoder, "encode", nothing)
    asked = {"mode": "paired", "language": "de", "translations": ["ghost", ENGLISH]}
    ghost, fine = paired.predict([GERMAN, GERMAN], **asked)
    assert ghost.pairing is not None
    assert ghost.pairing.reason is not None
    assert (ghost.pairing.mixed, ghost.pairing.reason.code) == (False, "nonsense")
    assert fine.mode == "paired"
    ghost, _ = paired.predict([GERMAN, GERMAN], require_translation=True, **asked)
    assert ghost.error is not None
    assert ghost.error.code == "untranslated"


def test_pairs_are_translated_side_by_side(pair_bundle: Path) -> None:
    classifier = with_engine(bundles.load(pair_bundle), Shouting())
    (answer,) = classifier.predict([(GERMAN, ENGLISH)], mode="translate")
    assert answer.pairing is not None
    assert answer.pairing.translation == (GERMAN.upper(), ENGLISH)
    assert answer.pairing.translator == "shouting"
    (given,) = classifier.predict(
        [(GERMAN, "Brot")], mode="translate", translations=[["a match", "bread"]]
    )
    (plain,) = classifier.predict([("a match", "bread")])
    assert given.probabilities == pytest.approx(plain.probabilities, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "paired", "translations": ["a", "b"]}, "one for each of the 1 items"),
        ({"mode": "paired", "translations": "a"}, "must be a list"),
        ({"mode": "plain", "translations": ["a"]}, "uses no translations"),
        ({"mode": "smoothed", "require_translation": True}, "uses no translations"),
        ({"mode": "paired", "long": "windows"}, "has no paired form"),
    ],
)
def test_wrong_calls_are_refused(paired: Classifier, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        paired.predict([GERMAN], **settings)


def test_a_bundle_without_the_graph_names_one_that_has_it(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, graph_bundles: dict[str, Bundle]
) -> None:
    engine = Shouting()
    classifier = with_engine(bundles.load(bundle), engine)
    (tmp_path / "other").symlink_to(graph_bundles["bert"].path)
    monkeypatch.setattr(bundles, "MODELS", tmp_path)
    with pytest.raises(UsageError, match="needs a bundle with the paired graph; use bundle=other"):
        classifier.predict([GERMAN], mode="paired", language="de")
    assert engine.calls == []


def test_an_event_loop_gets_the_same_answers(paired: Classifier) -> None:
    """Whoever drives the steps: here a loop that awaits what the library waits for."""
    assert paired.translators is not None
    steps = paired.steps(Asked([GERMAN], Settings(mode="paired", language="de")))
    asked = next(steps)
    assert isinstance(asked, TranslateRequest)
    assert (list(asked.texts), list(asked.languages), asked.target) == ([GERMAN], ["de"], "en")
    outcomes = asyncio.run(
        paired.translators.translate_async(asked.texts, asked.languages, asked.target)
    )
    assert outcomes == [Translation(GERMAN.upper(), "shouting", 0.5)]
    rows = steps.send(outcomes)
    assert isinstance(rows, RunRequest)
    with pytest.raises(StopIteration) as done:
        steps.send(paired.runners.run(rows))
    assert done.value.value == paired.predict([GERMAN], mode="paired", language="de")


def test_batches_are_translated_ahead(graph_bundles: dict[str, Bundle]) -> None:
    classifier = with_engine(graph_bundles["xlm-roberta"], Shouting())
    batches = [[f"Text {a}{b}" for b in "xyz"] for a in "abcd"]
    out: list[Prediction] = []
    settings = Settings(mode="paired", language="de")
    for answers in classifier.predict_batches(batches, settings):
        out += answers
    assert [p.pairing.translation for p in out if p.pairing] == [
        text.upper() for batch in batches for text in batch
    ]
    failing = with_engine(graph_bundles["xlm-roberta"], Faulty(say=crash))
    (((answer),),) = failing.predict_batches([["Hallo"]], settings)
    assert answer.pairing is not None
    assert answer.pairing.reason == Untranslated("failed", "faulty: the engine is on fire")


def test_the_next_batch_is_translated_while_this_one_runs(graph_bundles: dict[str, Bundle]) -> None:
    engine = Shouting(delay=0.01)
    classifier = with_engine(graph_bundles["xlm-roberta"], engine)
    batches = [[f"Text {n}"] for n in range(5)]
    settings = Settings(mode="paired", language="de")
    for n, _ in enumerate(classifier.predict_batches(batches, settings)):
        # We are busy with batch n; the engine gets batch n + 1, never n + 2, without our doing.
        until = time.monotonic() + 5
        while len(engine.calls) < min(5, n + 2) and time.monotonic() < until:
            time.sleep(0.005)
        assert len(engine.calls) == min(5, n + 2)


def test_stopping_early_cancels_what_is_being_translated(
    graph_bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = with_engine(graph_bundles["xlm-roberta"], Shouting())
    futures: list[Future[list[Outcome]]] = []

    def submit(texts: Any, *rest: Any) -> Future[list[Outcome]]:
        futures.append(Future())
        if len(futures) == 1:
            futures[-1].set_result([Translation(text, "me") for text in texts])
        return futures[-1]

    monkeypatch.setattr(classifier.translators, "submit", submit)
    batches = ([f"Text {n}"] for n in range(5))
    for _ in classifier.predict_batches(batches, Settings(mode="paired", language="de")):
        break
    assert [future.cancelled() for future in futures] == [False, True]


def test_other_modes_are_not_read_ahead(paired: Classifier) -> None:
    read = []

    def batches() -> Any:
        for n in range(3):
            read.append(n)
            yield ["x"]

    for n, _ in enumerate(paired.predict_batches(batches(), Settings())):
        assert read == list(range(n + 1))


def test_the_runner_pads_each_stream_on_its_own(graph_bundles: dict[str, Bundle]) -> None:
    """Rows of all lengths at once give what each gives alone."""
    classifier = Classifier(graph_bundles["bert"])
    runner = classifier.runners.of("paired")
    generator = np.random.default_rng(0)

    def piece(length: int) -> Piece:
        ids = generator.integers(5, 90, length).tolist()
        return Piece(ids, generator.integers(0, 2, length).tolist())

    rows = [PairedRow(piece(a), piece(b)) for a, b in ((3, 20), (20, 3), (7, 7), (1, 1))]
    together = runner.run(rows)
    for number, row in enumerate(rows):
        alone = runner.run([row])
        for name in ("target_logits", "source_logits", "ratio"):
            np.testing.assert_allclose(together[name][number], alone[name][0], atol=1e-5)
    assert [row.length for row in rows] == [23, 23, 14, 2]


def test_translators_come_from_a_file(graph_bundles: dict[str, Bundle], tmp_path: Path) -> None:
    table = tmp_path / "table.jsonl"
    row = {"source": "de", "target": "en", "text": GERMAN, "translation": ENGLISH, "engine": "me"}
    table.write_text(json.dumps(row) + "\n")
    file = tmp_path / "translators.toml"
    file.write_text('[engine.table]\nkind = "recorded"\nfile = "table.jsonl"\n')
    classifier = load(graph_bundles["xlm-roberta"].path, translators=file)
    (answer,) = classifier.predict([GERMAN], mode="paired")
    assert answer.pairing is not None
    assert (answer.pairing.translation, answer.pairing.translator) == (ENGLISH, "me")
