"""Weights that give NaN, infinities or what no float32 holds: the item fails, its neighbours do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import damage
from tests.damage import WORD
from xlt_serve import bundle as bundles
from xlt_serve.classifier import Classifier
from xlt_serve.errors import ItemError
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.runtime.session import Options
from xlt_serve.types import Prediction

GOOD = "The team won the final match of the league."
BAD = f"The {WORD} won the final match of the league."
HOLES = [float("nan"), float("inf"), -3e38]


def opened(bundle: bundles.Bundle, **more: Any) -> Classifier:
    return Classifier(bundle, Options(threads=1), **more)


@pytest.fixture(scope="module", params=HOLES, ids=str)
def holed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    """The shipped bundle (plain, perturbed) with a hole for one word."""
    folder = tmp_path_factory.mktemp("holed")
    table = folder / "en.json"
    table.write_text(json.dumps({"team": ["group"], "won": ["gained"], "match": ["game"]}))
    made = damage.without_word(bundles.load("topics"), folder / "bundle", request.param)
    return opened(made, synonyms={"en": table})


def one_fails(found: list[Prediction], mode: str) -> None:
    """The first and the last are answered, that between them is not."""
    first, second, third = found
    for good in (first, third):
        assert good.error is None
        assert all(np.isfinite(p) for p in good.probabilities.values())
    assert (second.label, second.probabilities, second.mode) == (None, {}, mode)
    assert (second.smoothed, second.pairing, second.abstained) == (None, None, None)
    assert second.error is not None
    assert second.error.code == "not_finite"
    assert "not a finite number" in second.error.message


def test_plain(holed: Classifier) -> None:
    one_fails(holed.predict([GOOD, BAD, GOOD]), "plain")
    alone = holed.predict([GOOD])
    assert holed.predict([GOOD, BAD, GOOD])[0] == alone[0]


def test_one_bad_window_is_enough(holed: Classifier) -> None:
    long = f"{GOOD} " * 40 + BAD
    one_fails(holed.predict([f"{GOOD} " * 40, long, GOOD], long="windows"), "plain")
    [cut] = holed.predict([long])  # the bad word is not read
    assert cut.error is None


@pytest.mark.parametrize("noise", ["gaussian", "uniform"])
@pytest.mark.parametrize("radius", [None, 0.02])
def test_noise(holed: Classifier, noise: str, radius: float | None) -> None:
    asked = Smoothing(40, radius=radius, noise=noise, scale=0.1, seed=1)
    one_fails(holed.predict([GOOD, BAD, GOOD], mode="smoothed", smoothing=asked), "smoothed")


def test_synonyms(holed: Classifier) -> None:
    asked = Smoothing(40, noise="synonym", words=1, seed=1)
    found = holed.predict([GOOD, BAD, GOOD], mode="smoothed", smoothing=asked, language="en")
    one_fails(found, "smoothed")


def test_one_bad_draw_voids_the_vote(tmp_path: Path) -> None:
    """One synonym of many has the hole: votes for others would be counted without it."""
    table = tmp_path / "en.json"
    table.write_text(json.dumps({"groups": [["won", WORD]]}))
    made = damage.without_word(bundles.load("topics"), tmp_path / "bundle", float("nan"))
    asked = Smoothing(100, noise="synonym", words=1, seed=1)
    [found] = opened(made, synonyms={"en": table}).predict(
        [GOOD], mode="smoothed", smoothing=asked, language="en"
    )
    assert (found.label, found.smoothed) == (None, None)
    assert found.error is not None
    assert found.error.code == "not_finite"


def test_translate(holed: Classifier) -> None:
    found = holed.predict(["a", "b", "c"], mode="translate", translations=[GOOD, BAD, GOOD])
    one_fails(found, "translate")
    bare = holed.predict([GOOD, BAD, GOOD], mode="translate", language="xx")
    assert [p.mode for p in bare] == ["plain", "translate", "plain"]
    assert bare[1].error is not None
    assert bare[1].error.code == "not_finite"


@pytest.mark.parametrize("hole", HOLES, ids=str)
def test_paired(tmp_path: Path, hole: float) -> None:
    made = damage.without_word(bundles.load("topics-paired"), tmp_path / "bundle", hole)
    classifier = opened(made)
    found = classifier.predict([GOOD, BAD, GOOD], mode="paired", translations=[GOOD, GOOD, GOOD])
    one_fails(found, "paired")
    found = classifier.predict([GOOD, GOOD, GOOD], mode="paired", translations=[GOOD, BAD, GOOD])
    one_fails(found, "paired")


@pytest.mark.parametrize("scorer", ["nli", "similarity"])
@pytest.mark.parametrize("hole", HOLES, ids=str)
def test_zero_shot(tmp_path: Path, hole: float, scorer: str) -> None:
    judge = opened(damage.judge(tmp_path / "judge", hole))
    labels = ["sports", "health"]
    if np.isfinite(hole):  # the mean of a table's rows is as finite as they are
        found = judge.zero_shot([GOOD, BAD], labels, scorer=scorer, template="{}")
        for answer in found:
            assert answer.error is None
            assert sum(answer.probabilities.values()) == pytest.approx(1)
        return
    one_fails(judge.zero_shot([GOOD, BAD, GOOD], labels, scorer=scorer), "zero_shot")
    found = judge.zero_shot([GOOD, GOOD], ["sports", WORD], scorer=scorer, template="{}")
    assert [p.error.code for p in found if p.error] == ["not_finite"] * 2
    german = {"de": "{}", "*": f"{WORD} {{}}"}  # the hypotheses of one language alone
    texts = ["Die Mannschaft gewann gestern das Endspiel.", GOOD]
    good, bad = judge.zero_shot(texts, labels, scorer=scorer, template=german)
    assert good.error is None
    assert bad.error is not None


@pytest.mark.parametrize("large", [1e41, 1.7e308])
def test_what_no_float32_holds(tmp_path: Path, large: float) -> None:
    """A graph may give doubles: divided by a temperature, they would leave the floats."""
    judge = opened(damage.judge(tmp_path / "judge", large, np.float64))
    found = judge.zero_shot([GOOD, BAD, GOOD], ["sports", "health"], scorer="nli")
    one_fails(found, "zero_shot")


def test_all_weights_bad(tmp_path: Path) -> None:
    """What the report had: a label with probability 1 for every text."""
    shipped = bundles.load("topics")
    for number, value in enumerate((float("nan"), float("inf"), 3e38)):
        made = damage.damaged(shipped, tmp_path / str(number), "out_proj.weight", value)
        classifier = opened(made)
        for mode, more in [("plain", {}), ("smoothed", {"samples": 40, "radius": 0.01})]:
            for found in classifier.predict([GOOD, BAD], mode=mode, **more):
                assert found.label is None
                assert found.error is not None
                assert found.error.code == "not_finite"


def test_logits_of_bad_rows_cannot_be_had(holed: Classifier) -> None:
    good, bad = holed.encoder.encode([GOOD, BAD])
    assert not isinstance(good, ItemError)
    assert not isinstance(bad, ItemError)
    assert np.isfinite(holed.logits(good.pieces)).all()
    with pytest.raises(ItemError, match="not a finite number"):
        holed.logits([*good.pieces, *bad.pieces])
