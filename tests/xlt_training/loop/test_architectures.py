"""Every encoder family through the same code: heads as transformers has them, graphs like torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    FNetConfig,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedModel,
)
from xlt_training.exporting import graph, parity, weights
from xlt_training.exporting import int8 as quantize
from xlt_training.loop import config, pretrained, trainer
from xlt_training.loop.collate import Encoding
from xlt_training.loop.model import load
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example

from xlt_serve.errors import DataError, UsageError
from xlt_serve.runtime.graph_io import PlainIO

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.15,
}


def distilbert(pieces: int, pad: int) -> PreTrainedModel:
    sizes = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "initializer_range": 0.15}
    return DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=pieces, pad_token_id=pad, num_labels=4, **sizes)
    )


def deberta(pieces: int, pad: int) -> PreTrainedModel:
    """As mDeBERTa-v3: relative positions in buckets, none in the embeddings, no types."""
    return DebertaV2ForSequenceClassification(
        DebertaV2Config(
            vocab_size=pieces,
            pad_token_id=pad,
            num_labels=4,
            type_vocab_size=0,
            relative_attention=True,
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type="p2c|c2p",
            position_biased_input=False,
            pooler_hidden_size=32,
            max_position_embeddings=512,
            **SHAPE,
        )
    )


def modernbert(pieces: int, pad: int, pooling: str = "mean") -> PreTrainedModel:
    return ModernBertForSequenceClassification(
        ModernBertConfig(
            vocab_size=pieces,
            pad_token_id=pad,
            num_labels=4,
            classifier_pooling=pooling,
            max_position_embeddings=512,
            local_attention=16,
            **SHAPE,
        )
    )


def other(kind: str, **more: Any) -> Callable[[int, int], PreTrainedModel]:
    """Of a family that has no settings but the usual ones."""

    def make(pieces: int, pad: int) -> PreTrainedModel:
        config = AutoConfig.for_model(
            kind, vocab_size=pieces, pad_token_id=pad, num_labels=4, **SHAPE | LENGTH | more
        )
        model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
        return model

    return make


LENGTH = {"max_position_embeddings": 512, "bos_token_id": 2, "eos_token_id": 3}
GROUPED = {"num_key_value_heads": 1, "head_dim": 16}
MAKERS: dict[str, Callable[[int, int], PreTrainedModel]] = {
    "distilbert": distilbert,
    "deberta-v2": deberta,
    "modernbert": modernbert,
    "modernbert-cls": lambda pieces, pad: modernbert(pieces, pad, "cls"),
    "electra": other("electra", embedding_size=16),
    "albert": other("albert", embedding_size=16),
    "mpnet": other("mpnet", max_position_embeddings=514),
    "eurobert": other("eurobert", num_key_value_heads=1),
    "eurobert-bos": other("eurobert", num_key_value_heads=1, classifier_pooling="bos"),
    "eurobert-mean": other("eurobert", num_key_value_heads=1, classifier_pooling="mean"),
    "jina_embeddings_v3": other("jina_embeddings_v3"),
    "gte": other("gte"),
    "gemma3_text": other("gemma3_text", sliding_window=16, **GROUPED),
    "qwen3": other("qwen3", **GROUPED),
}
QUICK = ("deberta-v2", "distilbert", "modernbert")
"""Whose graphs are traced in the fast suite; of the others each head is looked at there."""

WIDENED = ("albert", "electra")
"""Their first states are not yet what E(x) is, which is narrower."""


@pytest.fixture(scope="module", params=sorted(MAKERS))
def model(request: pytest.FixtureRequest, encoders: dict[str, Path]) -> Classifier:
    return made(request.param, encoders)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted(MAKERS)
    ],
)
def traced(request: pytest.FixtureRequest, encoders: dict[str, Path]) -> Classifier:
    """One whose graph is made, which takes seconds."""
    return made(request.param, encoders)


def made(name: str, encoders: dict[str, Path]) -> Classifier:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(encoders["bert"])
    hf = MAKERS[name](len(tokenizer), tokenizer.pad_token_id).eval()
    return Classifier(hf, tokenizer, 128).eval()


def random_batch(model: Classifier, rows: int, width: int) -> Batch:
    """Ids of any piece, each row padded a little more than the one before it."""
    io = PlainIO(PlainIO.inputs(model.encoding.type_ids), model.tokenizer.pad_token_id)
    feeds = io.example(io.sizes(rows, width), model.hf.config.vocab_size, ragged=True)
    return parity.batch_of({name: torch.from_numpy(array) for name, array in feeds.items()})


@torch.inference_mode()
def test_logits_are_those_of_transformers(model: Classifier) -> None:
    batch = random_batch(model, 5, 40)
    torch.testing.assert_close(model(batch).logits, model.hf(**batch.inputs()).logits)


@torch.inference_mode()
def test_the_embeddings_can_be_taken_out_and_put_back(model: Classifier) -> None:
    batch = random_batch(model, 3, 20)
    embedded = model.embed(batch)
    if model.hf.config.model_type not in WIDENED:
        states = model(batch, states=True).states
        torch.testing.assert_close(embedded, states[0])
    assert embedded.shape[-1] == model.embedded_width
    again = model(replace(batch, embeddings=embedded)).logits
    torch.testing.assert_close(again, model(batch).logits)
    moved = model(replace(batch, embeddings=embedded + 0.5)).logits
    assert (moved - again).abs().max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("at", ["embeddings", "encoder"])
def test_the_perturbed_graph_agrees_with_torch(traced: Classifier, at: str, tmp_path: Path) -> None:
    weights.save({"perturbed": graph.perturbed(traced, at)}, tmp_path)
    found = parity.perturbed(traced, tmp_path / "perturbed.onnx", at)
    assert max(found.values()) <= 1e-5


def test_the_plain_graph_agrees_with_torch_and_survives_int8(
    traced: Classifier, tmp_path: Path
) -> None:
    plain = graph.plain(traced)
    weights.save({"plain": plain, "small": quantize.int8(plain, smallest=512)}, tmp_path)
    assert max(parity.plain(traced, tmp_path / "plain.onnx").values()) <= 1e-5
    assert 0 < max(parity.plain(traced, tmp_path / "small.onnx").values()) < 0.2


def test_methods_that_work_inside_the_layers_are_refused(model: Classifier) -> None:
    with pytest.raises(UsageError, match=r"adapters.*works inside the layers of bert"):
        model.layers("adapters")


def test_another_family_is_refused_by_name(tmp_path: Path) -> None:
    FNetConfig().save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"fnet.*supported: bert, roberta"):
        pretrained.check(str(tmp_path))


@pytest.mark.parametrize(
    "kind",
    [
        *QUICK,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in sorted(set(MAKERS) - {*QUICK, "modernbert-cls"})
        ),
    ],
)
def test_each_family_trains(
    kind: str, encoders: dict[str, Path], config_file: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(encoders["bert"])
    made = MAKERS[kind](len(tokenizer), tokenizer.pad_token_id)
    made.base_model.save_pretrained(tmp_path / "encoder")  # as published: without a head
    tokenizer.save_pretrained(tmp_path / "encoder")
    overrides = [f"encoder={tmp_path / 'encoder'}", "train.max_steps=6"]
    trainer.train(config.load(config_file, overrides), tmp_path / "run")
    before = pretrained.load_classifier(str(tmp_path / "encoder"), {}).base_model.state_dict()
    trained, _ = load(tmp_path / "run")
    after = trained.base.state_dict()
    assert any((after[name] - before[name]).abs().max() > 1e-4 for name in before)


def test_padding_stands_behind_whatever_the_tokenizer_says(encoders: dict[str, Path]) -> None:
    """As serving pads; heads of decoders read the last real token by its number."""
    tokenizer = AutoTokenizer.from_pretrained(encoders["bert"])
    tokenizer.padding_side = "left"
    encoding = Encoding(tokenizer, ["a"], 16, type_ids=False)
    batch = encoding.batch([Example("one", "a", "en"), Example("one two three four", "a", "en")])
    assert batch.attention_mask[0, 0] == 1
    assert batch.attention_mask[0, -1] == 0
