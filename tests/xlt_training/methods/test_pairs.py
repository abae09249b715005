"""Methods with a second stream: EAR, code-switching, X-Mixup."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from xlt_training.loop import model as models
from xlt_training.loop.method import Context, cross_entropy
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example
from xlt_training.methods.code_switch import CodeSwitch, word_distance
from xlt_training.methods.ear import EAR, pull, push, word_attention, words_and_specials
from xlt_training.methods.mixing_gate import (
    Gate,
    agreement_of,
    normalised_entropy,
    state_scores,
)
from xlt_training.methods.xmixup import (
    XMixup,
    automatic_k,
    cross_attention,
    mix,
    original_share,
    spoil,
)

from tests.xlt_training.contexts import context_of
from tests.xlt_training.methods.conftest import padded
from xlt_serve.errors import UsageError

# -- EAR ------------------------------------------------------------------------------------------


def test_push_is_a_mean_over_width() -> None:
    left, right = torch.zeros(2, 3, 4), torch.ones(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    left[:, 2:] = 99  # padding of the first
    assert push(left, mask, right, mask).item() == pytest.approx(-1.0)
    wide = push(torch.zeros(2, 3, 400), mask, torch.ones(2, 3, 400), mask)
    assert wide.item() == pytest.approx(-1.0)


def test_word_attention_by_hand() -> None:
    """Tokens a a b: the mean over query tokens, the sum over key tokens."""
    maps = torch.tensor([[[[0.2, 0.3, 0.5], [0.4, 0.4, 0.2], [0.1, 0.1, 0.8]]]])
    words = torch.tensor([[0, 0, 1]])
    expected = torch.tensor([[[[0.65, 0.35], [0.2, 0.8]]]])
    torch.testing.assert_close(word_attention(maps, words, 2), expected)


def test_pull_by_brute_force() -> None:
    torch.manual_seed(0)
    left, right = torch.rand(1, 2, 4, 4).softmax(-1), torch.rand(1, 2, 5, 5).softmax(-1)
    left_words, right_words = torch.tensor([[0, 1, 1, 2]]), torch.tensor([[0, 1, 2, 2, 3]])
    total = 0.0
    for head in range(2):
        for query in range(3):  # word 3 is not in the left text
            for key in range(3):

                def cell(maps: torch.Tensor, words: torch.Tensor) -> float:
                    rows = [i for i, w in enumerate(words[0]) if w == query]  # noqa: B023
                    columns = [i for i, w in enumerate(words[0]) if w == key]  # noqa: B023
                    chosen = [sum(maps[0, head, r, c] for c in columns) for r in rows]  # noqa: B023
                    return float(sum(chosen) / len(chosen))

                total += (cell(left, left_words) - cell(right, right_words)) ** 2
    assert pull(left, left_words, right, right_words).item() == pytest.approx(total / 2, rel=1e-5)
    mean = pull(left, left_words, right, right_words, reduction="mean").item()
    assert mean == pytest.approx(total / 2 / 9, rel=1e-5)


def test_special_tokens_are_words_of_their_own(model: Classifier) -> None:
    batch = model.batch([Example("rain falls", "food", "en", pair="snow")], words=True)
    numbers = words_and_specials(batch)[0]
    special = [n for n, w in zip(numbers.tolist(), batch.words[0].tolist(), strict=True) if w < 0]  # type: ignore[index]
    assert special == list(range(len(special)))
    wide = padded(batch, 3, model.tokenizer.pad_token_id)
    assert words_and_specials(wide)[0, -3:].tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"push": "gaussian"},
        {"push": "none"},
        {"pull": "sentence"},
        {"pull": "none"},
        {"reduction": "mean"},
        {"dictionary_scale": 0.5},
    ],
    ids=str,
)
def test_ear_and_its_variants(
    model: Classifier, batch: Batch, context: Context, settings: dict[str, object]
) -> None:
    method = EAR(**settings)  # type: ignore[arg-type]
    method.prepare(model, [batch], context)
    loss = method.objective(model, batch, cross_entropy)
    assert ("push" in loss.terms) == (method.push != "none")
    assert ("pull" in loss.terms) == (method.pull != "none")
    assert loss.total.item() == pytest.approx(sum(v.item() for v in loss.terms.values()), rel=1e-5)
    assert all(value.requires_grad for value in loss.terms.values())
    torch.testing.assert_close(loss.terms["cross_entropy"], cross_entropy(model, batch).total)
    if method.push != "none":
        assert loss.terms["push"] <= 0
    if method.pull != "none":
        assert loss.terms["pull"] >= 0


def test_the_pull_of_a_text_to_itself_is_zero_in_training_too(
    model: Classifier, batch: Batch, context: Context
) -> None:
    """Attention maps must be read before dropout, or its noise is what is pulled on."""
    method = EAR(beta=1.0)
    method.prepare(model, [batch], context)
    method._table = {}
    model.train()
    for module in model.modules():
        if (
            isinstance(module, torch.nn.Dropout)
            and module.p
            and module is not model.base.encoder.layer[0].attention.self.dropout
        ):
            module.p = 0.0
    assert method.objective(model, batch, cross_entropy).terms["pull"].item() == pytest.approx(
        0, abs=1e-6
    )


# -- code-switching -------------------------------------------------------------------------------


def test_word_distance_by_hand() -> None:
    left = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]]])
    right = torch.tensor([[[1.0, 0.0], [1.0, 1.0], [9.0, 9.0]]])
    left_words, right_words = torch.tensor([[0, 0, 1]]), torch.tensor([[0, 1, -1]])
    # word 0: mean (½, ½) against (1, 0): cos 1/√2; word 1: (2, 2) against (1, 1): cos 1.
    expected = ((1 - 2**-0.5) + 0) / 2
    given = word_distance(left, left_words, right, right_words).item()
    assert given == pytest.approx(expected, abs=1e-6)


def test_code_switch_terms(model: Classifier, batch: Batch, context: Context) -> None:
    method = CodeSwitch(p=1.0)
    method.prepare(model, [batch], context)
    loss = method.objective(model, batch, cross_entropy)
    assert loss.terms["word_distance"] > 0
    assert loss.total.item() == pytest.approx(sum(v.item() for v in loss.terms.values()), rel=1e-5)
    same = CodeSwitch(p=0.0)
    same.prepare(model, [batch], context)
    unchanged = same.objective(model, batch, cross_entropy)
    assert unchanged.terms["word_distance"].item() == pytest.approx(0, abs=1e-5)
    assert unchanged.total.item() == pytest.approx(
        cross_entropy(model, batch).total.item(), abs=1e-5
    )


# -- X-Mixup --------------------------------------------------------------------------------------


@pytest.fixture
def pair_batches(model: Classifier, examples: list[Example]) -> tuple[Batch, Batch]:
    others = [e.with_texts([e.text.split(" ", 2)[-1]]) for e in examples]
    return model.batch(examples), model.batch(others)


def test_cross_attention_is_a_hand_written_einsum(
    model: Classifier, pair_batches: tuple[Batch, Batch]
) -> None:
    target, source = (model.embed(b) for b in pair_batches)
    mask = pair_batches[1].attention_mask
    attention = model.base.encoder.layer[0].attention
    own = attention.self
    heads, size = 2, 16

    def project(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        y = torch.einsum("bld,ed->ble", x, layer.weight) + layer.bias
        return y.reshape(*x.shape[:2], heads, size)

    query, key, value = (
        project(own.query, target),
        project(own.key, source),
        project(own.value, source),
    )
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(size)
    weights = (scores + (1 - mask[:, None, None]) * -1e9).softmax(-1)
    context = torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(*target.shape)
    dense = attention.output.dense
    expected = torch.einsum("bld,ed->ble", context, dense.weight) + dense.bias
    cross, given_scores = cross_attention(attention, target, source, mask)
    torch.testing.assert_close(cross, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(given_scores, scores, atol=1e-5, rtol=1e-4)


def test_entropy_is_normalised() -> None:
    """Even attention has entropy 1, whatever the length; attention to one place has 0."""
    ones = torch.ones(1, 4)
    even = torch.zeros(1, 2, 4, 6)
    keys = torch.tensor([[1, 1, 1, 0, 0, 0]])
    assert normalised_entropy(even, ones, keys).item() == pytest.approx(1)
    assert normalised_entropy(even, ones, torch.ones(1, 6)).item() == pytest.approx(1)
    sharp = even.clone()
    sharp[..., 1] = 100
    assert normalised_entropy(sharp, ones, keys).item() == pytest.approx(0, abs=1e-5)
    one_key = torch.tensor([[1, 0, 0, 0, 0, 0]])
    assert normalised_entropy(even, ones, one_key).item() == 0
    half = torch.tensor([[1, 1, 0, 0]])
    mixed = even.clone()
    mixed[:, :, 1:, 0] = 100  # the second query is sharp, the others are not real
    assert normalised_entropy(mixed, half, keys).item() == pytest.approx(0.5, abs=1e-5)


def test_scores_of_states_are_those_of_equation_5() -> None:
    generator = torch.Generator().manual_seed(0)
    target, source = (torch.randn(2, n, 8, generator=generator) for n in (3, 5))
    found = state_scores(target, source)
    assert found.shape == (2, 1, 3, 5)
    for row, query, key in ((0, 0, 0), (1, 2, 4)):
        by_hand = sum(
            float(a * b) for a, b in zip(target[row, query], source[row, key], strict=True)
        )
        assert found[row, 0, query, key].item() == pytest.approx(by_hand / math.sqrt(8), rel=1e-5)


def test_agreement_is_the_mean_of_the_nearest_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    target, source = (torch.randn(1, n, 8, generator=generator) for n in (4, 5))
    queries, keys = torch.tensor([[1, 1, 1, 0]]), torch.tensor([[1, 1, 0, 0, 0]])
    cosine = F.cosine_similarity
    by_hand = [
        max(float(cosine(target[0, q], source[0, k], dim=0)) for k in range(2)) for q in range(3)
    ]
    found = agreement_of(target, source, queries, keys)
    assert found.item() == pytest.approx(sum(by_hand) / 3, rel=1e-5)
    assert agreement_of(target, target, queries, queries).item() == pytest.approx(1)


def test_a_standardised_gate_has_gradients_that_differ() -> None:
    """As they are, entropies are near one value, and w and b could only move together."""
    generator = torch.Generator().manual_seed(0)
    entropy = 1.55 + 0.05 * torch.randn(200, generator=generator)
    agreement = 0.7 + 0.1 * torch.randn(200, generator=generator)
    wanted = torch.rand(200, generator=generator)

    def gradients(gate: Gate) -> tuple[torch.Tensor, torch.Tensor]:
        losses = (gate(entropy, agreement) - wanted) ** 2
        rows = [
            torch.autograd.grad(loss, list(gate.parameters()), retain_graph=True) for loss in losses
        ]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    def likeness(gate: Gate) -> float:
        return abs(float(torch.corrcoef(torch.stack(gradients(gate)))[0, 1]))

    raw, made = Gate(0.5, 0.0, fixed=False), Gate(0.5, 0.0, fixed=False)
    made.standardise(entropy, agreement)
    assert likeness(raw) > 0.99
    assert likeness(made) < 0.3
    assert made(entropy, agreement).mean().item() == pytest.approx(0.25)


def test_a_gate_of_the_first_edition_reads_the_entropy_as_it_is() -> None:
    gate = Gate(0.5, 0.0, fixed=False)
    gate.standardise(torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.9]))
    gate = Gate(0.5, 0.0, fixed=False)
    gate.load_state_dict({"weight": torch.tensor(-4.0), "bias": torch.tensor(6.0)})
    entropy = torch.tensor([1.4, 1.6])
    expected = 0.5 * torch.sigmoid(-4.0 * entropy + 6.0)
    torch.testing.assert_close(gate(entropy, entropy), expected)
    assert XMixup(**XMixup.first_edition | {"layer": 1}).entropy == "scores"
    assert XMixup(**XMixup.first_edition | {"entropy": "states"}).entropy == "states"


def test_the_ratio_is_in_its_range_and_does_not_see_padding(
    model: Classifier, pair_batches: tuple[Batch, Batch]
) -> None:
    gate = Gate(0.5, -4.0, fixed=False)
    pad = model.tokenizer.pad_token_id
    narrow = mix(model, *pair_batches, 1, gate)
    wide = mix(model, padded(pair_batches[0], 7, pad), padded(pair_batches[1], 3, pad), 1, gate)
    assert ((narrow.ratio > 0) & (narrow.ratio < 0.5)).all()
    torch.testing.assert_close(wide.ratio, narrow.ratio, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(wide.target.logits, narrow.target.logits, atol=1e-5, rtol=1e-4)
    assert (mix(model, *pair_batches, 1, Gate(0.3, -4.0, fixed=True)).ratio == 0.3).all()


def test_without_mixing_both_streams_are_plain_passes(
    model: Classifier, pair_batches: tuple[Batch, Batch]
) -> None:
    """The source stream always; the target stream at λ = 0, but for the extra LayerNorm of step 3."""
    out = mix(model, *pair_batches, 1, Gate(0.5, -4.0, fixed=False))
    torch.testing.assert_close(
        out.source.logits, model(pair_batches[1]).logits, atol=1e-5, rtol=1e-4
    )
    norm = model.base.encoder.layer[0].attention.output.LayerNorm
    with torch.no_grad():
        norm.weight.fill_(1.0)
        norm.bias.zero_()
        # With unit weight and no bias, LayerNorm of a normalised vector is itself.
        still = mix(model, *pair_batches, 1, Gate(0.0, 0.0, fixed=True))
        expected = model(pair_batches[0]).logits
    torch.testing.assert_close(still.target.logits, expected, atol=1e-3, rtol=1e-2)


def test_the_schedule_follows_its_curve() -> None:
    assert original_share(0, 1000) == pytest.approx(1000 / 1001)
    k = 1000.0
    half = k * math.log(k)
    assert original_share(round(half), k) == pytest.approx(0.5, abs=1e-3)
    assert original_share(10**9, k) == pytest.approx(0, abs=1e-9)
    shares = [original_share(step, 50) for step in range(0, 1000, 10)]
    assert shares == sorted(shares, reverse=True)
    for steps in (20, 300, 100_000):
        k = automatic_k(steps)
        assert k * math.log(k) == pytest.approx(steps / 2, rel=1e-6)


def test_spoilt_translations() -> None:
    generator = random.Random(0)
    made = [spoil(["one two three four"], ["another sentence"], generator) for _ in range(400)]
    other = sum(texts == ("another sentence",) for texts in made)
    assert other / 400 == pytest.approx(0.5, abs=0.08)
    dropped = [texts[0].split() for texts in made if texts != ("another sentence",)]
    assert all(0 < len(words) <= 4 for words in dropped)
    assert sum(map(len, dropped)) / len(dropped) == pytest.approx(2, abs=0.3)
    assert all(len(t[0]) <= 4 for t in [spoil(["你好世界"], ["x"], generator) for _ in range(9)])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"ratio": "fixed"},
        {"scheduled_sampling": False},
        {"consistency": "mse"},
        {"consistency": "kl"},
        {"consistency": "none"},
        {"damage": 0.5},
        {"layer": 2},
        {"entropy": "scores"},
        {"agreement": True},
    ],
    ids=str,
)
def test_xmixup_and_its_ablations(
    model: Classifier, examples: list[Example], context: Context, settings: dict[str, object]
) -> None:
    method = XMixup(**settings)  # type: ignore[arg-type]
    rows = list(method.augment(examples, context))
    assert {example.language for example in rows} == {"en", "de"}
    batch = model.batch(rows[3:9])
    method.attach(model)
    method.prepare(model, [batch], context)
    if method.ratio == "entropy":
        out = method.mixed(model, batch, method.sources(batch, False, None)[0])
        assert out.ratio.mean().item() == pytest.approx(0.25, abs=0.03)
    loss = method.objective(model, batch, cross_entropy)
    assert loss.total.item() == pytest.approx(sum(v.item() for v in loss.terms.values()), rel=1e-5)
    assert ("mse" in loss.terms) == (method.consistency in ("both", "mse"))
    assert ("kl" in loss.terms) == (method.consistency in ("both", "kl"))
    loss.total.backward()
    gate = model.slots["mixup"]
    if method.agreement:
        assert gate.agreement_weight.grad.abs() > 0
    if method.ratio == "entropy":
        assert gate.weight.grad.abs() > 0
        assert gate.bias.grad.abs() > 0
    else:
        assert gate.weight.grad is None


def test_the_source_of_an_english_example_is_itself(
    model: Classifier, examples: list[Example], context: Context
) -> None:
    method = XMixup(scheduled_sampling=False)
    rows = list(method.augment(examples[:2], context))
    batch = model.batch(rows[:2])
    assert [e.text for e in method.sources(batch, False, None)[0]] == [e.text for e in examples[:2]]
    german = model.batch([row for row in rows if row.language == "de"])
    assert [e.text for e in method.sources(german, True, None)[0]] == [
        e.round_trip[0] for e in german.examples
    ]


def test_consistency_terms_are_the_textbook_ones(
    model: Classifier, examples: list[Example], context: Context
) -> None:
    method = XMixup(scheduled_sampling=False)
    batch = model.batch(list(method.augment(examples, context))[-4:])
    method.attach(model)
    method.prepare(model, [batch], context)
    out = method.mixed(model, batch, method.sources(batch, False, None)[0])
    loss = method.objective(model, batch, cross_entropy)
    p, q = out.source.logits.softmax(-1), out.target.logits.softmax(-1)
    kl = (p * (p.log() - q.log())).sum(-1).mean()
    torch.testing.assert_close(loss.terms["kl"], kl, atol=1e-6, rtol=1e-3)
    expected = 0.4 * F.cross_entropy(out.source.logits, batch.labels)
    torch.testing.assert_close(loss.terms["source"], expected)


def test_a_wrong_layer_is_refused(model: Classifier) -> None:
    with pytest.raises(UsageError, match="the encoder has 2 layers"):
        XMixup(layer=3).attach(model)
    assert XMixup(layer=0).problems() == ["layer must be at least 1, was: 0"]
    assert XMixup(k="auto").problems() == []
    assert XMixup(k=0.5).problems()


def test_spoilt_sources_have_no_label(
    model: Classifier, examples: list[Example], context: Context
) -> None:
    method = XMixup(damage=1.0)
    batch = model.batch(list(method.augment(examples, context))[-4:])
    method.attach(model)
    method.prepare(model, [batch], context)
    assert set(method.objective(model, batch, cross_entropy).terms) == {"target"}


def test_a_source_text_predicts_as_its_own_pair(model: Classifier, batch: Batch) -> None:
    method = XMixup()
    method.attach(model)
    predicted = method.predict(model, batch)
    out = method.mix(model, batch, batch)
    expected = (out.target.logits.softmax(-1) + out.source.logits.softmax(-1)) / 2
    assert predicted is not None
    torch.testing.assert_close(predicted.logits.exp(), expected)
    assert XMixup(mixup_inference=False).predict(model, batch) is None


def test_the_gate_survives_saving(model: Classifier, tmp_path: Path, context: Context) -> None:
    method = XMixup()
    method.attach(model)
    gate = model.slots["mixup"]
    with torch.no_grad():
        gate.weight.fill_(-2.5)
        gate.bias.fill_(1.25)
    settings = {"name": "xmixup", **vars(XMixup())}
    description = models.Description(
        "sib200", False, model.labels, "en", 64, {"stages": [{"methods": [settings]}]}
    )
    models.save(tmp_path, model, description)
    again, _ = models.load(tmp_path)
    assert again.slots["mixup"].weight.item() == -2.5
    assert again.slots["mixup"].bias.item() == 1.25


def test_words_are_switched_into_the_languages_that_the_task_has(
    model: Classifier, toy_data: Path
) -> None:
    """There is a French dictionary, too, and no French dev set."""
    found = []
    for chosen, task in (([], "sib200"), (["fr"], "sib200"), ([], "xsid"), ([], "sentiment")):
        method = CodeSwitch(languages=chosen)
        method.prepare(model, [], context_of(toy_data, task=task))
        found.append(sorted(method._lexicons))
    assert found == [["de"], ["fr"], ["de", "fr"], ["de", "fr"]]


def test_a_fixed_gate_is_not_trained(model: Classifier, batch: Batch, context: Context) -> None:
    for ratio, trained in (("fixed", False), ("entropy", True)):
        method = XMixup(ratio=ratio)
        method.attach(model)
        model.requires_grad_(True)  # as every stage begins
        examples = [replace(e, source=e.texts()) for e in batch.examples]
        method.prepare(model, [model.batch(examples)], context)
        assert {p.requires_grad for p in model.slots["mixup"].parameters()} == {trained}
