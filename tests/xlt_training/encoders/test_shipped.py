"""What ships is what the model card says, within the sizes promised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
from xlt_training.encoders import make

from tests import ROOT
from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.errors import UsageError

TOPICS = (
    "entertainment",
    "geography",
    "health",
    "politics",
    "science/technology",
    "sports",
    "travel",
)


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_model_card_names_the_hash_of_every_file() -> None:
    text = (make.ENCODER / make.CARD).read_text(encoding="utf-8")
    named = dict(re.findall(r"^\| (\S+) \| `([0-9a-f]{64})` \|$", text, re.MULTILINE))
    there = {
        str(file.relative_to(ROOT)): bundles.digest(file)
        for folder in (make.ENCODER, *make.shipped())
        for file in folder.iterdir()
        if file.name != make.CARD
    }
    assert named == there


def test_sizes() -> None:
    assert size(make.ENCODER) <= 40_000_000
    for folder in make.shipped():
        assert size(folder) <= 25_000_000, folder


def test_the_encoder_opens_in_transformers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(make.ENCODER)
    inputs = tokenizer(
        ["Paris is the capital of France.", "巴黎"], return_tensors="pt", padding=True
    )
    model = AutoModel.from_pretrained(make.ENCODER, dtype=torch.float32, add_pooling_layer=False)
    with torch.inference_mode():
        hidden = model.eval()(**inputs).last_hidden_state
    assert hidden.shape == (2, inputs["input_ids"].shape[1], 256)
    assert torch.isfinite(hidden).all()


def test_the_masked_language_model_prefers_words_that_fit() -> None:
    """A head that was not loaded would score all words alike."""
    tokenizer = AutoTokenizer.from_pretrained(make.ENCODER)
    model = AutoModelForMaskedLM.from_pretrained(make.ENCODER, dtype=torch.float32).eval()
    text = "He plays football for the national team ."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        likelihoods = []
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            likelihoods.append(
                model(input_ids=masked).logits[0, place].log_softmax(-1)[ids[0, place]]
            )
    assert torch.stack(likelihoods).mean() > -torch.log(torch.tensor(28_000.0)) + 3


def test_the_default_bundle_loads_without_an_argument() -> None:
    classifier = load()
    assert classifier.bundle.path == make.BUNDLE
    assert classifier.labels == TOPICS
    assert classifier.bundle.manifest.graphs["plain"].precision == "int8"
    assert classifier.bundle.manifest.source_language == "en"


def test_the_paired_bundle_mixes_a_text_with_its_translation() -> None:
    """And the one without the graph says which has it."""
    texts = ["Команда выиграла чемпионат мира по футболу.", "球队赢得了足球冠军。"]
    english = ["The team won the football world championship.", "The team won the football cup."]
    for answer in load("topics-paired").predict(texts, mode="paired", translations=english):
        assert answer.label == "sports"
        assert answer.to_dict()["mixed"] is True
        assert 0 < answer.to_dict()["ratio"] < 0.5
    with pytest.raises(UsageError, match="topics-paired"):
        load("topics").predict(texts, mode="paired", translations=english)


@pytest.mark.parametrize(
    "text",
    [
        "The team won the championship after a penalty shoot-out in the final.",
        "Die Mannschaft gewann die Meisterschaft nach einem Elfmeterschießen im Finale.",
        "Команда выиграла чемпионат мира по футболу в финальном матче.",
        "球队在决赛中赢得了足球冠军。",
    ],
)
def test_the_default_bundle_knows_sports_in_several_languages(text: str) -> None:
    assert load().predict([text])[0].label == "sports"
