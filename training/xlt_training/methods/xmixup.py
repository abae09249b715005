"""X-Mixup: mix a text with its translation inside the encoder (Yang 2022)."""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.masking_utils import create_bidirectional_mask

from xlt_serve.errors import UsageError
from xlt_training.data.translations import translated_train
from xlt_training.loop.architectures import Attention
from xlt_training.loop.method import (
    Again,
    Context,
    Method,
    Objective,
    Pairing,
    Trait,
    classification,
    least_problems,
    share_problems,
)
from xlt_training.loop.network import Classifier
from xlt_training.loop.tensors import mean_pool
from xlt_training.loop.types import Batch, Example, Loss, Mixed, Output
from xlt_training.methods import vote_fit
from xlt_training.methods.mixing_gate import Gate, agreement_of, normalised_entropy, state_scores

logger = logging.getLogger(__name__)


def cross_attention(
    attention: Attention, target: Tensor, source: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The target's attention to the source with a layer's own weights, through its output
    projection, without residual: [batch, length, width]; and the scores before the mask."""

    def heads(states: Tensor) -> Tensor:
        batch, length, _ = states.shape
        return states.view(batch, length, -1, attention.self.attention_head_size).transpose(1, 2)

    query = heads(attention.self.query(target))
    key, value = heads(attention.self.key(source)), heads(attention.self.value(source))
    scores = query @ key.transpose(-1, -2) * attention.self.attention_head_size**-0.5
    weights = scores.masked_fill(~mask.bool()[:, None, None, :], -torch.inf).softmax(-1)
    context = (attention.self.dropout(weights) @ value).transpose(1, 2).flatten(2)
    return attention.output.dropout(attention.output.dense(context)), scores


Entropy = Literal["states", "scores"]


def mix(
    model: Classifier,
    target: Batch,
    source: Batch,
    layer: int,
    gate: Gate,
    entropy_of: Entropy = "states",
) -> Mixed:
    """Both streams through the encoder; at ``layer`` (1-based) the target takes in the source."""
    streams = [model.embed(target), model.embed(source)]
    # In the form that the model's attention implementation takes.
    masks = [
        create_bidirectional_mask(
            config=model.base.config, inputs_embeds=stream, attention_mask=batch.attention_mask
        )
        for stream, batch in zip(streams, (target, source), strict=True)
    ]
    seen, keys = target.attention_mask, source.attention_mask
    ratio = streams[0].new_zeros(streams[0].shape[0])  # len() would fix it in a graph
    entropy = agreement = ratio
    for number, block in enumerate(model.layers("xmixup"), 1):
        if number != layer:
            streams = [block(s, m) for s, m in zip(streams, masks, strict=True)]
            continue
        attended = [block.attention(s, m)[0] for s, m in zip(streams, masks, strict=True)]
        cross, scores = cross_attention(block.attention, attended[0], attended[1], keys)
        if entropy_of == "states":
            scores = state_scores(attended[0], attended[1])
        entropy = normalised_entropy(scores, seen, keys)
        entropy = entropy + normalised_entropy(scores.transpose(-1, -2), keys, seen)
        agreement = agreement_of(attended[0], attended[1], seen, keys)
        ratio = gate(entropy, agreement)
        share = ratio[:, None, None]
        blended = block.attention.output.LayerNorm(share * cross + (1 - share) * attended[0])
        streams = [block.feed_forward_chunk(s) for s in (blended, attended[1])]
    ends = [model.finish(target, streams[0]), model.finish(source, streams[1])]
    return Mixed(ends[0], ends[1], ratio, entropy, agreement)


def gate_of(model: Classifier) -> Gate:
    return cast(Gate, model.slots["mixup"])


def original_share(step: int, k: float) -> float:
    """Scheduled sampling: p* = k / (k + exp(i/k)), the chance of the original at step i."""
    return k / (k + math.exp(min(step / k, 700)))


def automatic_k(steps: int) -> float:
    """k with k · ln k = half of all steps: the schedule then passes one half in the middle."""
    low, high = 1.0 + 1e-9, max(steps, 3.0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * math.log(middle) < steps / 2 else (low, middle)
    return high


def spoil(texts: Sequence[str], others: Sequence[str], generator: random.Random) -> tuple[str, ...]:
    """A bad translation: about half of the words dropped, or another sentence altogether."""
    if generator.random() < 0.5:
        return tuple(others)
    out = []
    for text in texts:
        words = text.split() if " " in text.strip() else list(text)
        kept = [word for word in words if generator.random() < 0.5] or words[:1]
        out.append((" " if " " in text.strip() else "").join(kept))
    return tuple(out)


@dataclass
class XMixup(Method):
    """``α CE_S + (1−α) CE_T + MSE(r_S, r_T) + KL(p_S‖p_T)`` over two streams mixed at one layer.

    Data: recorded translations of the train set, and back (``TASK/mt``); the source examples are
    trained too, each as its own counterpart. Owns the pairs: nothing that makes second streams
    composes with it, and it comes last.
    """

    traits = frozenset(
        {Trait.SECOND_STREAM, Trait.RUNS_STREAMS, Trait.COMPARES_TOKENS, Trait.TRANSLATIONS}
    )
    graphs = ("paired",)

    first_edition: ClassVar[dict[str, Any]] = {"entropy": "scores"}

    languages: list[str] = field(default_factory=list)  # of the translations; none: all
    layer: int = 1  # where the streams meet, from 1
    ceiling: float = 0.5  # greatest λ
    gate: float = 0.0  # first slope of λ over the entropy
    gate_rate: float = 100.0  # its learning rate over the model's: the slope moves by about one
    entropy: Entropy = "states"  # of their likeness (equation 5); "scores": as the public code
    agreement: bool = False  # λ reads the streams' agreement too
    ratio: Literal["entropy", "fixed"] = "entropy"  # λ: by the entropy, or the ceiling
    alpha: float = 0.4  # weight of the source's loss; 1 - alpha: the target's
    scheduled_sampling: bool = True  # from the original to its round trip, more and more
    k: float | Literal["auto"] = 1000.0  # how slowly: for hundreds of thousands; "auto": any size
    consistency: Literal["both", "mse", "kl", "none"] = "both"  # of states (mse) and answers (kl)
    damage: float = 0.0  # chance of a translation to be spoilt, so that the gate learns to leave it
    mixup_inference: bool = True  # mix at prediction too; else the target alone is read
    # Of the streams: half and half, or by their agreement, which takes two more trainings.
    vote: Literal["paper", "weighted"] = "paper"

    def problems(self) -> list[str]:
        out = share_problems(self, "ceiling", "alpha", "damage") + least_problems(self, 1, "layer")
        return out if self.k == "auto" or self.k > 1 else [*out, f"k must be over 1, was: {self.k}"]

    def augment(self, examples: Sequence[Example], context: Context) -> Iterable[Example]:
        for example in examples:
            yield replace(example, source=example.texts())
        translated = translated_train(examples, context, self.languages)
        if self.scheduled_sampling:
            there = {e.language for e in translated if e.round_trip}
            if without := sorted({e.language for e in translated} - there):
                logger.warning("xmixup: no round trips for %s: the original serves", without)
        yield from translated

    def attach(self, model: Classifier) -> None:
        depth = model.depth
        if self.layer > depth:
            raise UsageError(f"xmixup.layer = {self.layer}", f"the encoder has {depth} layers")
        gate = Gate(self.ceiling, self.gate, self.ratio == "fixed", self.agreement)
        gate = gate.to(model.device)
        for parameter in gate.parameters():
            parameter.rate = self.gate_rate  # type: ignore[attr-defined]  # of the model's
        model.slots["mixup"] = gate

    def prepare(self, model: Classifier, batches: Sequence[Batch], context: Context) -> None:
        if self.vote == "weighted" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UsageError(
                "vote = 'weighted'", "is fitted by one process", "leave it out under torchrun"
            )
        self._k = automatic_k(context.steps) if self.k == "auto" else self.k
        gate = gate_of(model)
        gate.requires_grad_(not gate.fixed)
        if XMixup in context.prepared:
            return  # the gate was trained in an earlier stage
        was_training = model.training
        model.eval()
        with torch.no_grad():
            chosen = range(0, len(batches), max(1, len(batches) // 8))
            seen = []
            for number in chosen:
                batch = batches[number]
                sources, _ = self.sources(batch, False, None)
                seen.append(self.mixed(model, batch, sources))
            # σ is one half at the mean, as b is 0: λ begins around λ0/2.
            gate.standardise(
                torch.cat([one.entropy for one in seen]), torch.cat([one.agreement for one in seen])
            )
        model.train(was_training)

    def sources(
        self, batch: Batch, round_trip: bool, generator: random.Random | None
    ) -> tuple[list[Example], list[bool]]:
        """The counterparts in the source language, round trips where wanted, and which were spoilt."""
        out, spoilt = [], []
        for number, example in enumerate(batch.examples):
            texts = example.round_trip if round_trip and example.round_trip else example.source
            bad = bool(generator and self.damage and generator.random() < self.damage)
            if bad:
                assert generator is not None
                other = batch.examples[(number + 1) % len(batch.examples)]
                texts = spoil(texts, other.source, generator)
            out.append(example.with_texts(texts))
            spoilt.append(bad)
        return out, spoilt

    def mixed(self, model: Classifier, batch: Batch, sources: list[Example]) -> Mixed:
        return self.mix(model, batch, model.batch(sources))

    def mix(self, model: Classifier, target: Batch, source: Batch) -> Mixed:
        return mix(model, target, source, self.layer, gate_of(model), self.entropy)

    def objective(self, model: Classifier, batch: Batch, inner: Objective) -> Loss:
        generator = random.Random(int(torch.randint(2**62, ())))
        original = not self.scheduled_sampling or generator.random() <= original_share(
            model.step, self._k
        )
        sources, spoilt = self.sources(batch, not original, generator)
        out = self.mixed(model, batch, sources)
        source, target = out.source, out.target
        # A spoilt source teaches the gate, through the target: it has no label of its own.
        good = ~torch.tensor(spoilt, device=batch.labels.device)
        labels = batch.labels
        terms = {"target": (1 - self.alpha) * classification(model, target.logits, labels)}
        if good.any():
            of_source = classification(model, source.logits[good], labels[good])
            terms["source"] = self.alpha * of_source
            if self.consistency in ("both", "mse"):
                terms["mse"] = F.mse_loss(
                    mean_pool(source.last, source.attention_mask)[good],
                    mean_pool(target.last, target.attention_mask)[good],
                )
            if self.consistency in ("both", "kl"):
                terms["kl"] = F.kl_div(
                    target.logits[good].log_softmax(-1),
                    source.logits[good].log_softmax(-1),
                    log_target=True,
                    reduction="batchmean",
                )
        trips = sum(not original and bool(example.round_trip) for example in batch.examples)
        figures = {
            "ratio": float(out.ratio.detach().mean()),
            "round_trip": trips / len(batch.examples),
        }
        total = torch.stack(list(terms.values())).sum()
        return Loss(total, terms, figures, outputs=[target, source])

    def fitted(self, again: Again) -> dict[str, dict[str, float]]:
        if self.vote == "paper":
            return {}
        parts = []
        for fold in ("0/2", "1/2"):
            model, held, context = again(fold)
            examples = translated_train(held, context, self.languages)
            for spoilt in (False, True):
                parts += self._ballots(model, examples, spoilt, context.seed)
        return {"paired": vote_fit.fit(vote_fit.joined(parts))}

    @torch.inference_mode()
    def _ballots(
        self, model: Classifier, examples: list[Example], spoilt: bool, seed: int
    ) -> list[vote_fit.Ballots]:
        generator, out = random.Random(seed), []
        examples = sorted(examples, key=lambda example: len(example.text))  # pads less
        judge = replace(self, damage=float(spoilt))
        for start in range(0, len(examples), 64):
            batch = model.batch(examples[start : start + 64])
            sources, bad = judge.sources(batch, False, generator)
            mixed = self.mixed(model, batch, sources)
            agreement, text, other, truth = (
                value.cpu()
                for value in (
                    mixed.agreement,
                    mixed.target.logits,
                    mixed.source.logits,
                    batch.labels,
                )
            )
            out.append(vote_fit.Ballots(agreement, text, other, truth, ~torch.tensor(bad)))
        return out

    def predict(self, model: Classifier, batch: Batch) -> Output | None:
        """A text of the source language is its own counterpart; both streams' mean."""
        if not self.mixup_inference:
            return None
        out = self.mix(model, batch, batch)
        mean = (out.target.logits.softmax(-1) + out.source.logits.softmax(-1)) / 2
        return replace(out.target, logits=mean.log())

    def refuses(self, graph: str) -> str:
        if self.mixup_inference:
            return ""
        return "mixes at prediction, which the config rules out with mixup_inference = false"

    def pairing(self) -> Pairing:
        return self
