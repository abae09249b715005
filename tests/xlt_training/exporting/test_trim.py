"""A trimmed vocabulary: fewer pieces, the same tokens for the languages that stay."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from xlt_training.exporting import checkpoint as export
from xlt_training.exporting import trim
from xlt_training.loop import model
from xlt_training.loop.network import Classifier

from xlt_serve import load
from xlt_serve.bundle import MODELS
from xlt_serve.errors import ExportRefused, UsageError

SHIPPED = MODELS / "encoders" / "small"
SAMPLES = {
    "de": "Die Mannschaft gewann, 3:2 – großartig! 😀",
    "tr": "İstanbul'da yağmur yağıyor; çok güzel.",
    "ru": "Сегодня идёт дождь, ёлки стоят.",
    "bg": "Днес вали дъжд.",
    "el": "Σήμερα βρέχει στην Αθήνα.",
    "ar": "السَّلامُ عليكم، كيف الحال؟",
    "ur": "آج بارش ہو رہی ہے۔",
    "hi": "आज बारिश हो रही है।",
    "zh": "今天下雨，人々出门。",
    "ja": "今日はコーヒーを飲みます。",
    "ko": "오늘은 비가 옵니다.",
    "th": "วันนี้ฝนตกหนักมาก",
    "vi": "Hôm nay trời mưa to.",
}


def small() -> Classifier:
    torch.manual_seed(0)
    return model.build("small", ["a", "b"], 64).eval()


@pytest.fixture(scope="module")
def whole() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(SHIPPED)


@pytest.mark.parametrize(
    "languages", [["de"], ["ru", "el"], ["zh", "ja", "ko"], ["ar", "hi", "th"]]
)
def test_text_of_the_kept_languages_is_cut_as_before(
    languages: list[str], whole: PreTrainedTokenizerFast
) -> None:
    trimmed = small()
    counts = trim.trim(trimmed, languages)
    assert counts["after"] < 0.9 * counts["before"]
    assert len(trimmed.tokenizer) == counts["after"]
    for language in [*languages, "de", "tr", "vi"]:
        text = SAMPLES[language]
        before = whole.convert_ids_to_tokens(whole(text)["input_ids"])
        after = trimmed.tokenizer.convert_ids_to_tokens(trimmed.tokenizer(text)["input_ids"])
        assert after == before


@pytest.fixture(scope="module")
def latin_only() -> Classifier:
    trimmed = small()
    trim.trim(trimmed, ["en"])
    return trimmed


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(max_codepoint=0x24F), max_size=60))
def test_any_latin_text_is_cut_as_before(
    latin_only: Classifier, whole: PreTrainedTokenizerFast, text: str
) -> None:
    # µ, for one, is normalised to a Greek letter.
    assume(trim.is_written_in(unicodedata.normalize("NFKC", text), {"LATIN"}))
    before = whole.convert_ids_to_tokens(whole(text)["input_ids"])
    after = latin_only.tokenizer(text)["input_ids"]
    assert latin_only.tokenizer.convert_ids_to_tokens(after) == before


@torch.inference_mode()
def test_logits_do_not_move(latin_only: Classifier, whole: PreTrainedTokenizerFast) -> None:
    texts = [SAMPLES["de"], SAMPLES["vi"]]
    untrimmed = small()
    expected = untrimmed.hf(**whole(texts, padding=True, return_tensors="pt")).logits
    given_logits = latin_only.hf(
        **latin_only.tokenizer(texts, padding=True, return_tensors="pt")
    ).logits
    torch.testing.assert_close(given_logits, expected)


def test_wordpiece_too(encoders: dict[str, Path]) -> None:
    bert = model.build(str(encoders["bert"]), ["a", "b"], 64).eval()
    text = "the bread was équipe 12!"
    before = bert.tokenizer.tokenize(text)
    counts = trim.trim(bert, ["en"])
    assert counts["after"] < counts["before"]
    assert bert.tokenizer.tokenize(text) == before
    assert bert.tokenizer.tokenize("你好") != before
    assert bert.tokenizer.unk_token in bert.tokenizer.tokenize("你好")


def test_a_trimmed_bundle_serves(checkpoint: Path, bundle: Path, tmp_path: Path) -> None:
    made = export.export(checkpoint, tmp_path / "latin", export.Order(trim_vocab=["en", "de"]))
    assert made.manifest.checks["trimmed"]["after"] < made.manifest.checks["trimmed"]["before"]
    text = "the goal was in our match"
    [whole_answer], [trimmed_answer] = load(bundle).predict([text]), load(made.path).predict([text])
    assert trimmed_answer.probabilities == pytest.approx(whole_answer.probabilities, abs=0.01)
    assert trimmed_answer.tokens == whole_answer.tokens
    assert trimmed_answer.warning is None
    [hindi, chinese] = load(made.path).predict([SAMPLES["hi"], SAMPLES["zh"]])
    assert "kept for en, de, not for hi" in str(hindi.warning)
    assert "kept for en, de, not for zh" in str(chinese.warning)


def test_what_cannot_be_trimmed_is_refused(latin_only: Classifier) -> None:
    with pytest.raises(UsageError, match="--trim-vocab tlh"):
        trim.trim(latin_only, ["tlh"])
    described = json.loads(latin_only.tokenizer.backend_tokenizer.to_str())
    described["model"] = {"type": "BPE"}
    with pytest.raises(ExportRefused, match="a BPE tokenizer"):
        trim.kept_ids(described, {"LATIN"})
