"""Damaged translations: what becomes of the accuracy and of λ, X-Mixup's mixing ratio."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from xlt_training.loop import model as models
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Example
from xlt_training.methods.xmixup import XMixup

from benchmarks.paired_data import Language

DAMAGES = ("none", "drop 25 %", "drop 50 %", "drop 75 %", "other sentence")


@torch.inference_mode()
def streams(
    mixup: XMixup, network: Classifier, examples: Sequence[Example], sources: Sequence[Example]
) -> dict[str, np.ndarray]:
    """Both streams' probabilities, λ and the entropy that it hangs on."""
    network.eval()
    parts: dict[str, list[np.ndarray]] = {"target": [], "source": [], "ratio": [], "entropy": []}
    order = sorted(range(len(examples)), key=lambda n: len(examples[n].text))  # pads less
    for start in range(0, len(examples), 16):
        chosen = order[start : start + 16]
        batch = network.batch([examples[number] for number in chosen])
        mixed = mixup.mixed(network, batch, [sources[number] for number in chosen])
        parts["target"].append(mixed.target.logits.softmax(-1).numpy())
        parts["source"].append(mixed.source.logits.softmax(-1).numpy())
        parts["ratio"].append(mixed.ratio.numpy())
        parts["entropy"].append(mixed.entropy.numpy())
    back = np.argsort(order)
    return {name: np.concatenate(values)[back] for name, values in parts.items()}


def spoilt(texts: Sequence[str], damage: str) -> list[str]:
    """Every translation damaged in one way; the same for every model and seed."""
    if damage == "none":
        return list(texts)
    if damage == "other sentence":
        return [texts[(number + len(texts) // 2) % len(texts)] for number in range(len(texts))]
    share = int(damage.split()[1]) / 100
    out = []
    for text in texts:
        generator = random.Random(text)
        words = text.split()
        kept = [word for word in words if generator.random() >= share] or words[:1]
        out.append(" ".join(kept))
    return out


def before_training(
    encoder: str, items: dict[str, Language], most: int = 50
) -> dict[str, dict[str, float]]:
    """λ depends on an entropy. Does it tell a bad translation before any training? For each layer the
    chance that a damaged translation's entropy is above an intact one's."""
    torch.manual_seed(0)
    network = models.build(encoder, ["a", "b"], 128)
    out: dict[str, dict[str, float]] = {}
    for layer in range(1, network.depth + 1):
        mixup = XMixup(layer=layer)
        mixup.attach(network)
        found: dict[str, list[np.ndarray]] = {damage: [] for damage in DAMAGES}
        for mine in items.values():
            chosen = mine.items[:most]
            examples = [item.example for item in chosen]
            for damage in DAMAGES:
                texts = spoilt([item.translation for item in chosen], damage)
                sources = [e.with_texts([t]) for e, t in zip(examples, texts, strict=True)]
                found[damage].append(streams(mixup, network, examples, sources)["entropy"])
        whole = np.concatenate(found["none"])
        out[str(layer)] = {
            damage: separation(-whole, -np.concatenate(found[damage])) for damage in DAMAGES[1:]
        }
    return out


def damaged(runs: list[dict[str, Any]], items: dict[str, Language]) -> dict[str, Any]:
    """For each damage: accuracy, mean λ, and how often λ falls for the same sentence."""
    out: dict[str, Any] = {}
    way = "translate_test" if "ratios" not in runs[0] else "paired"
    for damage in DAMAGES:
        correct = [run["correct"][f"{way} {damage}"] for run in runs]
        row = {"accuracy": float(np.mean([[np.mean(c[lg]) for lg in items] for c in correct]))}
        if way == "paired":
            whole = [np.concatenate([run["ratios"]["none"][lg] for lg in items]) for run in runs]
            now = [np.concatenate([run["ratios"][damage][lg] for lg in items]) for run in runs]
            row["ratio"] = float(np.mean(now))
            row["falls"] = float(np.mean([np.mean(n < w) for n, w in zip(now, whole, strict=True)]))
            row["separates"] = float(
                np.mean([separation(w, n) for w, n in zip(whole, now, strict=True)])
            )
            row["entropy"] = float(
                np.mean([[run["entropies"][damage][lg] for lg in items] for run in runs])
            )
        out[damage] = row
    if way == "paired":
        out["gate"] = [run["gate"] for run in runs]
    return out


def separation(whole: np.ndarray, spoilt_ones: np.ndarray) -> float:
    """The chance that an intact translation's λ is above a damaged one's (the area under the ROC);
    a tie counts as one half."""
    # Equals share the mean of their ranks: a λ that never changes gives one half.
    _, place, count = np.unique(
        np.concatenate([whole, spoilt_ones]), return_inverse=True, return_counts=True
    )
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    above = ranks[: len(whole)].sum() - len(whole) * (len(whole) + 1) / 2
    return float(above / (len(whole) * len(spoilt_ones)))
