from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import FILLER, FOOD, SPORTS, WORDS, sentence
from xlt_serve import Classifier, load
from xlt_serve.calibration import softmax
from xlt_serve.errors import UsageError
from xlt_serve.text.tokens import Tokens


@pytest.fixture(scope="module")
def classifier(bundle: Path) -> Classifier:
    return load(bundle)


def texts(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [
        " ".join(sentence(generator.choice(list(WORDS)), generator) for _ in range(1 + i % 5))
        for i in range(count)
    ]


def test_it_knows_the_toy_topics(classifier: Classifier) -> None:
    answers = classifier.predict([SPORTS, FOOD])
    assert [answer.label for answer in answers] == ["sports", "food"]
    assert all(sum(a.probabilities.values()) == pytest.approx(1) for a in answers)
    assert answers[0].version == classifier.bundle.manifest.version
    assert answers[0].tokens > 5
    assert not answers[0].truncated


def test_order_is_kept_and_bad_items_are_values(classifier: Classifier) -> None:
    good = texts(40, 3)
    items: list[object] = [*good[:20], "", None, "\ud800", "x" * 100_001, ("a", "b"), *good[20:]]
    answers = classifier.predict(items)
    assert [a.error.code for a in answers if a.error] == [
        "empty",
        "not_text",
        "not_text",
        "too_large",
        "shape",
    ]
    alone = [classifier.predict([text])[0].label for text in good]
    assert [a.label for a in answers if not a.error] == alone
    assert classifier.predict([]) == []
    assert classifier.predict([""])[0].label is None


def test_an_answer_does_not_depend_on_its_neighbours(classifier: Classifier) -> None:
    """Each text alone, in random batches, under several budgets."""
    items = texts(60, 1)
    alone = [classifier.predict([text])[0] for text in items]
    generator = random.Random(2)
    for budget in (50, 300, 5000):
        mixed = Classifier(classifier.bundle, budget=budget)
        for _ in range(5):
            order = generator.sample(range(len(items)), len(items))
            for index, answer in zip(order, mixed.predict([items[i] for i in order]), strict=True):
                expected = alone[index].probabilities
                assert answer.probabilities == pytest.approx(expected, abs=1e-6)
                assert answer.label == alone[index].label


def test_an_answer_does_not_depend_on_padding(classifier: Classifier) -> None:
    for text in texts(10, 4):
        (tokens,) = classifier.encoder.encode([text])
        assert isinstance(tokens, Tokens)
        expected = classifier.logits(tokens.pieces)[0]
        for extra in (1, 7, 200):
            padded = classifier.runners.of("plain").run(tokens.pieces, padding=extra)
            np.testing.assert_allclose(padded["logits"][0], expected, atol=1e-5)


def test_long_texts_are_cut_windowed_or_refused(classifier: Classifier) -> None:
    long = " ".join(FILLER * 10)
    cut, windowed, refused = (
        classifier.predict([long], long=choice)[0]
        for choice in ("truncate", "windows", "error")  # type: ignore[arg-type]
    )
    assert cut.truncated
    assert cut.windows == 1
    assert windowed.windows > 1
    assert not windowed.truncated
    assert cut.tokens == windowed.tokens > classifier.bundle.manifest.max_length
    assert refused.error is not None
    assert refused.error.code == "too_long"


def test_windows_are_the_token_weighted_mean(classifier: Classifier) -> None:
    long = " ".join(texts(12, 9))
    (tokens,) = classifier.encoder.encode([long], long="windows")
    assert isinstance(tokens, Tokens)
    rows = softmax(
        np.concatenate([classifier.logits([piece]) for piece in tokens.pieces]),
        classifier.bundle.manifest.temperature("plain"),
    )
    weights = np.array([len(piece.ids) for piece in tokens.pieces])
    expected = (weights[:, None] * rows).sum(0) / weights.sum()
    (answer,) = classifier.predict([long], long="windows")
    np.testing.assert_allclose(list(answer.probabilities.values()), expected, atol=1e-6)


def test_max_length_may_be_lowered_not_raised(classifier: Classifier) -> None:
    text = texts(5, 5)[4]
    assert classifier.predict([text], max_length=10)[0].truncated
    limit = classifier.bundle.manifest.max_length
    raised = classifier.predict([" ".join(FILLER * 10)], max_length=10 * limit)[0]
    assert raised.truncated


def test_only_the_largest_probabilities_where_asked(classifier: Classifier) -> None:
    (full,), (two,) = (classifier.predict([SPORTS], top_k=k) for k in (None, 2))
    assert list(full.probabilities) == list(classifier.labels)
    best = sorted(full.probabilities.values(), reverse=True)[:2]
    assert list(two.probabilities.values()) == best


def test_abstaining_is_a_value(classifier: Classifier) -> None:
    (answer,) = classifier.predict(["town"], abstain_below=1.0)
    assert answer.label is None
    assert answer.abstained == "confidence"
    assert answer.error is None
    assert sum(answer.probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"long": "shrink"}, "must be one of truncate, windows, error"),
        ({"max_length": 2}, "at least 8"),
        ({"abstain_below": 1.5}, r"between 0 and 1 \(inclusive\)"),
    ],
)
def test_wrong_options_are_refused(
    classifier: Classifier, options: dict[str, object], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        classifier.predict(["a"], **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="predict takes a list"):
        classifier.predict("a")


def test_the_clients_language_wins(classifier: Classifier) -> None:
    assert classifier.predict(["we saw the big old town today"])[0].language == "en"
    assert classifier.predict(["we saw the big old town"], language="de")[0].language == "de"


def test_pairs(pair_bundle: Path) -> None:
    pairs = load(pair_bundle)
    assert "token_type_ids" in pairs.session.inputs
    answers = pairs.predict([("rain and snow", "wind"), "rain", ("a", ""), ["rain", "goal"]])
    assert [a.error.code if a.error else None for a in answers] == [None, "shape", "empty", None]
    assert answers[0].label in pairs.labels
    long = " ".join(FILLER * 10)
    (windowed,) = pairs.predict([("rain", long)], long="windows")
    assert windowed.windows > 1
