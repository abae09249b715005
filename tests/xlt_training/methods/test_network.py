from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor
from xlt_training.loop.architectures import HEADS
from xlt_training.loop.collate import word_numbers
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example

from tests.xlt_training.methods.conftest import padded


def test_logits_are_transformers_own(model: Classifier, batch: Batch) -> None:
    with torch.inference_mode():
        expected = model.hf(**batch.inputs()).logits
        torch.testing.assert_close(model(batch).logits, expected)


def test_embed_is_the_first_hidden_state(model: Classifier, batch: Batch) -> None:
    with torch.inference_mode():
        states = model.base(**batch.inputs(), output_hidden_states=True).hidden_states
        torch.testing.assert_close(model.embed(batch), states[0])


def test_going_on_from_the_embeddings_changes_nothing(model: Classifier, batch: Batch) -> None:
    with torch.inference_mode():
        again = model(replace(batch, embeddings=model.embed(batch)))
        torch.testing.assert_close(again.logits, model(batch).logits)
        other = model(replace(batch, embeddings=model.embed(batch) + 0.1))
    assert not torch.allclose(other.logits, again.logits)


def test_a_shift_moves_the_first_token_alone(model: Classifier, batch: Batch) -> None:
    shift = torch.randn(len(batch.labels), 32)
    with torch.inference_mode():
        last = model(batch).last.clone()
        last[:, 0] += shift
        expected = HEADS[model.hf.config.model_type](model.hf, last, batch.attention_mask)
        torch.testing.assert_close(model(replace(batch, shift=shift)).logits, expected)


def test_padding_changes_no_logit(model: Classifier, batch: Batch) -> None:
    with torch.inference_mode():
        wide = model(padded(batch, 9, model.tokenizer.pad_token_id))
        torch.testing.assert_close(wide.logits, model(batch).logits, atol=1e-5, rtol=1e-5)


def test_recording_reaches_every_forward_within_it(model: Classifier, batch: Batch) -> None:
    with model.recording(states=True):
        assert len(model(batch).states) == 3
        with model.recording(attentions=False):
            assert len(model(batch).states) == 3
    assert model(batch).states == ()


def test_words_follow_the_spaces(model: Classifier) -> None:
    text = "the big-old  Mannschaft, today!"
    example = Example(text, "food", "en")
    batch = model.batch([example, Example("snow", "food", "en")], words=True)
    assert batch.words is not None
    numbers: Tensor = batch.words[0][batch.attention_mask[0].bool()]
    assert numbers[0] == numbers[-1] == -1
    assert sorted(set(numbers.tolist())) == [-1, 0, 1, 2, 3]
    tokens = model.tokenizer.convert_ids_to_tokens(batch.input_ids[0].tolist())
    joined = {
        word: "".join(
            t.replace("##", "").replace("▁", "")
            for t, n in zip(tokens, batch.words[0], strict=True)
            if n == word
        )
        for word in range(4)
    }
    unknown = {model.tokenizer.unk_token}
    for number, word in enumerate(text.split()):
        assert joined[number].lower() == word.lower() or unknown & set(tokens)
    pair = model.batch([Example("rain falls ", "food", "en", pair=" snow")], words=True)
    assert pair.words is not None
    assert set(pair.words[0].tolist()) == {-1, 0, 1, 2}


def test_a_lone_space_belongs_to_the_word_behind_it() -> None:
    class Pieces:
        offsets: ClassVar = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 8), (8, 9), (0, 0), (0, 1), (1, 2)]
        sequence_ids: ClassVar = [None, 0, 0, 0, 0, 0, None, 1, 1]

    example = Example("I 狗 cats ", "x", "en", pair=" b")
    assert word_numbers(example, Pieces) == [-1, 0, 1, 1, 2, 2, -1, 3, 3]
