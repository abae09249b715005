"""EAR as the paper has it: pushes and pulls that can be learnt from, copies, ready pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from xlt_training.data import load_split
from xlt_training.exporting.trained import trained_words
from xlt_training.loop.method import Context, TrainedSynonyms, cross_entropy
from xlt_training.loop.model import Description
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example
from xlt_training.methods.ear import EAR, pull_sentences, push

from tests.xlt_training.contexts import context_of
from xlt_serve.errors import DataError, UsageError


def test_the_push_of_noise_has_the_gradient_of_finite_differences(
    model: Classifier, batch: Batch, context: Context
) -> None:
    """Without dropout, along a random direction of each table of the embeddings."""
    model.hf.double()
    method = EAR(push="gaussian", pull="none", alpha=1.0)
    method.prepare(model, [batch], context)

    def value() -> torch.Tensor:
        torch.manual_seed(3)
        plain = model.batch(batch.examples, words=True)
        return method.pushed(model, plain, *method.copy(model, plain))

    parameters = [model.base.embeddings.word_embeddings.weight]
    parameters += [model.base.embeddings.position_embeddings.weight]
    gradients = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert gradient.norm() > 0
        torch.manual_seed(4)
        direction, step = torch.randn_like(parameter), 1e-5
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
                sides.append(value().item())
                parameter -= sign * step * direction
        slope = (sides[0] - sides[1]) / (2 * step)
        assert (gradient * direction).sum().item() == pytest.approx(slope, rel=1e-4)


def test_the_push_of_a_text_to_itself_is_zero_in_training_too(
    model: Classifier, batch: Batch, context: Context
) -> None:
    """Of a synonym copy it is what the embeddings are without dropout."""
    model.train()
    method = EAR(pull="none")
    method.prepare(model, [batch], context)
    plain = model.batch(batch.examples, words=True)
    assert method.pushed(model, plain, plain, None).item() == 0
    other, _ = method.copy(model, plain)
    loss = method.objective(model, batch, cross_entropy)
    assert loss.terms["push"] < 0
    assert all(module.training for module in model.modules())
    model.eval()
    masks = model.mask(plain), model.mask(other)
    expected = push(model.embed(plain), masks[0], model.embed(other), masks[1])
    model.train()
    torch.testing.assert_close(method.pushed(model, plain, other, None), expected)


def test_the_pull_of_sentences_is_a_mean_over_width() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    for width in (4, 400):
        left, right = torch.zeros(2, 3, width), torch.full((2, 3, width), 3.0)
        left[:, 2:] = 99  # padding of the first
        assert pull_sentences(left, mask, right, mask).item() == pytest.approx(9.0)


def test_each_example_comes_with_so_many_copies(context: Context) -> None:
    examples = [Example("goal", "a", "en"), Example("Tor", "a", "de")]
    made = list(EAR(copies=3).augment(examples, context))
    assert made == [examples[0]] * 3 + [examples[1]]
    assert EAR(copies=0).problems() == ["copies must be at least 1, was: 0"]


def test_ready_copies_are_read_by_their_text(
    model: Classifier, toy_data: Path, tmp_path: Path
) -> None:
    """In a source language that has no synonyms here, and for pairs of texts."""
    rows = load_split("sib200", toy_data, "train", "de")[:3]
    file = tmp_path / "copies.tsv"
    lines = [f"{e.text}\t{copy}" for e in rows for copy in (e.text.upper(), f"{e.text} goal")]
    file.write_text("text\tcopy\n" + "\n".join(lines) + "\n")
    method, context = EAR(pairs=str(file)), context_of(toy_data, "de")
    made = list(method.augment(rows, context))
    assert [e.copy for e in made[:2]] == [(rows[0].text.upper(),), (f"{rows[0].text} goal",)]
    assert {e.text for e in made} == {e.text for e in rows}
    batch = model.batch(made)
    method.prepare(model, [batch], context)
    plain = model.batch(made, words=True)
    other, noise = method.copy(model, plain)
    assert [e.text for e in other.examples] == [e.copy[0] for e in made]
    assert noise is None
    terms = method.objective(model, batch, cross_entropy).terms
    assert terms["push"] < 0
    assert terms["pull"] > 0
    with pytest.raises(DataError, match="has no copy of 1 of 4 train texts, as 'neu'"):
        list(method.augment([*rows, Example("neu", "food", "de")], context))
    pair = replace(rows[0], pair="zwei")
    with pytest.raises(DataError, match="has no column 'pair'"):
        list(method.augment([pair], context))
    file.write_text("text\tcopy\tpair\tpair_copy\n" + f"{pair.text}\teins\tzwei\tzwo\n")
    assert [e.copy for e in method.augment([pair], context)] == [("eins", "zwo")]
    assert EAR(pairs="x", push="gaussian").problems()
    assert EAR(pairs="x", copies=2).problems()


def test_only_what_reads_words_needs_spaces(
    model: Classifier, batch: Batch, tmp_path: Path
) -> None:
    chinese = Context("zh", 0)
    EAR(pairs=str(tmp_path / "copies.tsv"), pull="sentence").prepare(model, [batch], chinese)
    for method in (EAR(pairs=str(tmp_path / "copies.tsv")), EAR(pull="none")):
        with pytest.raises(UsageError, match="ear with texts in zh"):
            method.prepare(model, [batch], chinese)


def test_a_model_trained_without_push_has_still_seen_synonyms() -> None:
    assert EAR(push="none").synonyms() == TrainedSynonyms("", "neighbours", 1.0)
    assert EAR(push="gaussian").synonyms() is None
    assert EAR(pairs="copies.tsv").synonyms() is None
    description = Description("sib200", False, ["a"], "en", 64, {"task": {"name": "sib200"}})
    told = trained_words([EAR(push="none")], description)
    assert told == {"draws": "neighbours", "language": "en"}
