from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertModel
from xlt_training.data import load_split
from xlt_training.loop import fisher
from xlt_training.loop import model as models
from xlt_training.loop.architectures import longest
from xlt_training.loop.method import Context, compose, cross_entropy
from xlt_training.loop.network import Classifier
from xlt_training.loop.trainer import weights_digest
from xlt_training.loop.types import Batch
from xlt_training.methods.adapters import Adapters
from xlt_training.methods.bitfit import BitFit
from xlt_training.methods.ewc import EWC
from xlt_training.methods.l2_anchor import L2Anchor
from xlt_training.methods.noisy_tune import NoisyTune
from xlt_training.methods.soft_prompt import SoftPrompt

from xlt_serve.cli.main import main
from xlt_serve.errors import DataError, UsageError


def move(model: Classifier, by: float) -> None:
    with torch.no_grad():
        for parameter in model.base.parameters():
            parameter += by


def test_l2_is_half_the_squared_distance(model: Classifier, batch: Batch, context: Context) -> None:
    method = L2Anchor(strength=0.2)
    method.prepare(model, [], context)
    assert method.objective(model, batch, cross_entropy).terms["l2_anchor"].item() == 0
    move(model, 0.1)
    count = sum(p.numel() for _, p in model.encoder_parameters())
    given = method.objective(model, batch, cross_entropy).terms["l2_anchor"].item()
    assert given == pytest.approx(0.2 / 2 * 0.01 * count, rel=1e-3)


def test_the_anchor_holds_a_pooler_that_was_pretrained(
    encoders: dict[str, Path], tmp_path: Path, batch: Batch, context: Context
) -> None:
    torch.manual_seed(0)
    BertModel.from_pretrained(encoders["bert"]).save_pretrained(tmp_path)  # as mBERT is published
    AutoTokenizer.from_pretrained(encoders["bert"]).save_pretrained(tmp_path)
    held = {}
    for name, place in (("with", tmp_path), ("without", encoders["bert"])):
        model = models.build(str(place), ["food", "sports", "weather"], 64)
        method = L2Anchor(strength=2.0)
        method.prepare(model, [], context)
        assert model.base.pooler.dense.weight.shape == (32, 32)
        with torch.no_grad():
            model.base.pooler.dense.weight += 0.1
        loss = method.objective(model, model.batch(batch.examples), cross_entropy)
        held[name] = loss.terms["l2_anchor"].item()
    assert held["with"] == pytest.approx(0.01 * 32 * 32, rel=1e-3)
    assert held["without"] == 0


def ones(model: Classifier) -> dict[str, torch.Tensor]:
    return {name: torch.ones_like(p) for name, p in model.base.named_parameters()}


def test_ewc_with_a_fisher_of_ones_is_l2(
    model: Classifier, batch: Batch, context: Context, tmp_path: Path
) -> None:
    fisher.save(tmp_path, "fr", {name: 7 * value for name, value in ones(model).items()})
    fisher.save(tmp_path, "fr+en", ones(model))
    methods = {
        "l2": L2Anchor(strength=0.3),
        "one": EWC(str(tmp_path), fisher=["fr"], strength=0.3),
        "mix": EWC(str(tmp_path), mix=["fr", "en"], strength=0.3),
        "two": EWC(str(tmp_path), fisher=["fr"], mix=["fr", "en"], strength=0.3),
    }
    for method in methods.values():
        method.prepare(model, [], context)
    move(model, 0.05)
    terms = {
        name: next(
            v
            for k, v in m.objective(model, batch, cross_entropy).terms.items()
            if k in ("ewc", "l2_anchor")
        ).item()
        for name, m in methods.items()
    }
    assert terms["one"] == pytest.approx(terms["l2"], rel=1e-4)
    assert terms["mix"] == pytest.approx(terms["l2"], rel=1e-4)
    assert terms["two"] == pytest.approx(2 * terms["l2"], rel=1e-4)


def test_ewc_without_a_fisher_says_how_to_make_one(
    model: Classifier, context: Context, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"xlt fisher ENCODER --languages fr,en"):
        EWC(str(tmp_path), mix=["fr", "en"]).prepare(model, [], context)
    fisher.save(tmp_path, "xx", {"encoder.wrong": torch.ones(3)})
    with pytest.raises(DataError, match="is of another encoder"):
        EWC(str(tmp_path), fisher=["xx"]).prepare(model, [], context)
    with pytest.raises(UsageError, match="needs fisher"):
        EWC(str(tmp_path)).prepare(model, [], context)


def test_the_fisher_is_the_mean_squared_gradient(encoders: dict[str, Path], family: str) -> None:
    """Against plain backward passes, text by text."""
    tokenizer = AutoTokenizer.from_pretrained(encoders[family])
    model = AutoModelForMaskedLM.from_pretrained(encoders[family]).eval()
    texts = ["rain and snow in town", "the team saw a goal", "bread"]
    batches = list(fisher.masked(texts, tokenizer, 32, seed=0))
    given = fisher.diagonal(model, batches)
    name = "encoder.layer.0.attention.self.query.weight"
    parameter = dict(model.base_model.named_parameters())[name]
    expected = torch.zeros_like(parameter)
    for ids, words in batches:
        assert (words != -100).any()
        assert (ids[words != -100] == tokenizer.mask_token_id).all()
        model.zero_grad()
        hidden = words[0] != -100
        logits = model(input_ids=ids).logits[0, hidden]
        F.cross_entropy(logits, words[0, hidden], reduction="sum").backward()
        assert parameter.grad is not None
        expected += parameter.grad**2 / 3
    torch.testing.assert_close(given[name], expected, rtol=1e-4, atol=1e-8)


def test_the_output_layer_is_no_part_of_the_embeddings_fisher(
    encoders: dict[str, Path], family: str
) -> None:
    """Against the gradient of what the tables gave out, added up by hand."""
    texts = ["rain and snow in town", "the team saw a goal", "bread"]
    given = fisher.compute(str(encoders[family]), texts, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(encoders[family])
    model = AutoModelForMaskedLM.from_pretrained(encoders[family]).eval()
    table = model.get_input_embeddings()
    assert model.get_output_embeddings().weight is table.weight  # tied
    out: list[torch.Tensor] = []
    table.register_forward_hook(lambda _m, _i, output: out.append(output) or output.retain_grad())
    expected = torch.zeros_like(table.weight)
    for ids, words in fisher.masked(fisher.drawn(texts, 3, 0), tokenizer, 128, 0):
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=words).loss
        (loss * (words != -100).sum()).backward()
        gradient = torch.zeros_like(table.weight).index_add_(0, ids[0], out.pop().grad[0])
        expected += gradient**2 / 3
    expected[tokenizer.pad_token_id] = given["embeddings.word_embeddings.weight"][
        tokenizer.pad_token_id
    ]
    torch.testing.assert_close(
        given["embeddings.word_embeddings.weight"], expected, rtol=1e-3, atol=1e-7
    )


def test_a_fisher_says_what_it_is_of(
    model: Classifier, context: Context, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = fisher.source_of("small", "abc", ["eins", "zwei"], sentences=1, seed=3)
    assert source != fisher.source_of("small", "abc", ["eins", "drei", "vier"], sentences=1)
    path = fisher.save(tmp_path, "fr", ones(model), source)
    assert fisher.read_source(path) == source
    EWC(str(tmp_path), fisher=["fr"]).prepare(model, [], replace(context, encoder="abc"))
    with pytest.raises(DataError, match=r"is of other weights \(small, abc; here xyz\)"):
        EWC(str(tmp_path), fisher=["fr"]).prepare(model, [], replace(context, encoder="xyz"))
    assert not caplog.text
    fisher.save(tmp_path, "fr", ones(model))  # as those of the first edition are
    EWC(str(tmp_path), fisher=["fr"]).prepare(model, [], replace(context, encoder="xyz"))
    assert "does not say which encoder and text it is of" in caplog.text


def test_a_fisher_for_each_language(
    encoders: dict[str, Path],
    toy_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts = tmp_path / "text"
    shutil.copytree(toy_data / "text", texts)
    (texts / "de.txt").write_text("Regen und Schnee\nSuppe mit Brot\n")
    call = ["fisher", str(encoders["bert"]), "--languages", "fr,de", "--text", str(texts)]
    call += ["--sentences", "2", "--out", str(tmp_path / "out")]
    assert main([*call, "--each"]) == 0
    paths = {language: tmp_path / "out" / f"{language}.safetensors" for language in ("fr", "de")}
    assert capsys.readouterr().out.splitlines() == [f"fisher: {p}" for p in paths.values()]
    sources = {language: fisher.read_source(path) for language, path in paths.items()}
    assert sources["fr"] is not None
    assert sources["de"] is not None
    assert sources["fr"].weights == sources["de"].weights == weights_digest(str(encoders["bert"]))
    assert sources["fr"].text != sources["de"].text
    assert main([*call, "--device", "cuda:9"]) == 2
    assert "device cuda:9: can't be used" in capsys.readouterr().err


def test_a_fisher_of_an_encoder_without_head_is_refused(
    tmp_path: Path, encoders: dict[str, Path]
) -> None:
    BertModel(
        BertConfig(
            vocab_size=50,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
        )
    ).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(encoders["bert"]).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="has no masked-language-model head"):
        fisher.compute(str(tmp_path), ["a b c"])


@pytest.mark.parametrize("name", ["ewc", "l2_anchor"])
def test_a_penalty_is_felt_but_does_not_rule(
    name: str,
    encoders: dict[str, Path],
    family: str,
    toy_data: Path,
    tmp_path: Path,
    context: Context,
) -> None:
    """From step 30 to 50 its gradient is between half a percent and all of the task's, in the middle, at the
    default strength; of one batch the share differs by a factor of three."""
    texts = (toy_data / "text" / "fr.txt").read_text().splitlines()
    fisher.save(tmp_path, "fr", fisher.compute(str(encoders[family]), texts, sentences=20))
    torch.manual_seed(0)
    model = models.build(str(encoders[family]), ["food", "sports", "weather"], 64)
    method = EWC(str(tmp_path), fisher=["fr"]) if name == "ewc" else L2Anchor()
    method.prepare(model, [], context)
    rows = load_split("sib200", toy_data, "train", "en")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    parameters = [p for p in model.base.parameters() if p.requires_grad]

    def norm(value: torch.Tensor) -> float:
        gradients = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
        return float(
            torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt()
        )

    shares = []
    for step in range(50):
        loss = compose([method])(model, model.batch(rows[(step * 16) % 200 :][:16]))
        if step >= 30:
            shares.append(norm(loss.terms[name]) / norm(loss.terms["cross_entropy"]))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert 0.005 < float(np.median(shares)) < 1


def test_noisy_tune_adds_a_tenth_of_each_tensors_deviation(
    model: Classifier, context: Context
) -> None:
    before = {name: p.detach().clone() for name, p in model.hf.named_parameters()}
    NoisyTune(strength=0.1).prepare(model, [], context)
    head = {name for name, _ in model.hf.named_parameters()} - {
        f"{model.hf.base_model_prefix}.{name}" for name, _ in model.encoder_parameters()
    }
    for name, parameter in model.hf.named_parameters():
        change = (parameter - before[name]).detach()
        if name in head:
            assert change.abs().max() == 0
        elif before[name].numel() > 500:
            width = 0.1 * before[name].std()
            assert change.abs().max() <= 0.5 * width * 1.0001
            assert change.std() == pytest.approx(width.item() / 12**0.5, rel=0.1)


def test_noisy_tune_leaves_alone_what_is_never_tuned(model: Classifier, context: Context) -> None:
    before = {name: p.detach().clone() for name, p in model.encoder_parameters()}
    tuned = {name for name in before if name.startswith("encoder.layer.1.")}
    NoisyTune().prepare(model, [], replace(context, tuned=frozenset(tuned)))
    moved = {n for n, p in model.encoder_parameters() if not torch.equal(p, before[n])}
    assert moved <= tuned
    assert "encoder.layer.1.output.dense.weight" in moved


def trained(model: Classifier) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


def head_names(model: Classifier) -> set[str]:
    head = ("hf.classifier", "hf.bert.pooler")
    return {name for name, _ in model.named_parameters() if name.startswith(head)}


def test_bitfit_trains_exactly_the_biases_and_the_head(model: Classifier, context: Context) -> None:
    BitFit().prepare(model, [], context)
    biases = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    assert trained(model) == biases | head_names(model)


@pytest.mark.parametrize("norms", [True, False])
def test_adapters_begin_as_the_identity_and_train_with_the_norms_alone(
    model: Classifier, batch: Batch, context: Context, norms: bool
) -> None:
    before = model(batch).logits
    method = Adapters(size=4, norms=norms)
    method.attach(model)
    torch.testing.assert_close(model(batch).logits, before)
    method.prepare(model, [], context)
    kept = {name for name, _ in model.named_parameters() if norms and "LayerNorm" in name}
    assert len(kept) == (10 if norms else 0)  # of the embeddings and of both sub-layers
    added = {name for name, _ in model.named_parameters() if name.startswith("slots.adapters")}
    assert len(model.slots["adapters"]) == 4  # two layers, two sub-layers
    assert trained(model) == added | kept | head_names(model)
    with torch.no_grad():
        model.slots["adapters"][0].up.weight.normal_()
    assert not torch.allclose(model(batch).logits, before)


def test_soft_prompts_shift_positions_and_masks(
    model: Classifier, batch: Batch, context: Context
) -> None:
    """A prompt of the embeddings of real words gives what those words in the text give."""
    method = SoftPrompt(length=3)
    method.attach(model)
    method.prepare(model, [], context)
    assert trained(model) == {"slots.prompt.vectors"} | head_names(model)
    words = batch.input_ids[0, 1:4]
    with torch.no_grad():
        model.slots["prompt"].vectors.copy_(model.base.embeddings.word_embeddings(words))
    ids, mask = batch.input_ids, batch.attention_mask
    inputs = {
        "input_ids": torch.cat([ids[:, :1], words.repeat(len(ids), 1), ids[:, 1:]], dim=1),
        "attention_mask": torch.cat(
            [mask[:, :1], torch.ones(len(ids), 3).long(), mask[:, 1:]], dim=1
        ),
    }
    with torch.inference_mode():
        expected = model.hf(**inputs).logits
        out = model(batch)
        torch.testing.assert_close(out.logits, expected, atol=1e-5, rtol=1e-4)
        assert out.last.shape[1] == ids.shape[1]
        assert model.embed(batch).shape[1] == ids.shape[1] + 3
        torch.testing.assert_close(model.mask(batch), inputs["attention_mask"])


def test_prompts_take_their_room_from_the_text(model: Classifier) -> None:
    model.encoding.max_length = longest(model.hf.config)
    SoftPrompt(length=20).attach(model)
    assert model.encoding.max_length == longest(model.hf.config) - 20


def test_fishers_need_not_be_of_evaluation_sentences(
    encoders: dict[str, Path],
    toy_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = Path(shutil.copytree(toy_data, tmp_path / "data"))
    held = load_split("sib200", data, "dev", "de")[0].text
    file = data / "text" / "fr.txt"
    file.write_text(f"{file.read_text()}\n\n« {held.title()} ! »\nune phrase libre")
    seen: list[list[str]] = []
    compute = fisher.compute

    def watched(encoder: str, texts: list[str], *rest: Any, **more: Any) -> dict[str, torch.Tensor]:
        seen.append(texts)
        return compute(encoder, texts, *rest, **more)

    monkeypatch.setattr(fisher, "compute", watched)
    call = ["fisher", str(encoders["bert"]), "--languages", "fr", "--text", str(data / "text")]
    call += ["--sentences", "2"]
    for more in ([], ["--leave-out", str(data)]):
        assert main([*call, "--out", str(tmp_path / "out"), *more]) == 0
    assert [len(texts) for texts in seen] == [32, 31]
    assert seen[1][-1] == "une phrase libre"
    assert main([*call, "--out", str(tmp_path / "out"), "--leave-out", str(file)]) == 1
    assert f"{file}: is no folder" in capsys.readouterr().err
