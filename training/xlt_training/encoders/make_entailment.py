"""The entailment bundle for zero-shot labels, made and judged by one command:

    python -m xlt_training.encoders.make_entailment --data ../shared/data --out nli

It trains a head on English pairs, exports it with the text's vector as a second output, and writes
what it measured into the manifest: XNLI's even dev rows per language, and SIB-200 topics as labels that it
was never trained for, per language, by entailment and by similarity, against the commonest label.
The scorer that is better on SIB's dev rows is the bundle's default.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier, load
from xlt_serve.errors import ExportRefused
from xlt_serve.modes.zero_shot import TEMPLATE, Scorer
from xlt_training.data import languages, load_split
from xlt_training.encoders.make import SENSITIVE
from xlt_training.exporting import checkpoint as export
from xlt_training.loop import config, model, pretrained, trainer
from xlt_training.loop.settings import FREEZE_ALL
from xlt_training.loop.types import Example

LARGEST = 25_000_000
# The encoder stays as it is. Trained whole on these pairs it stayed at chance on XNLI, and forgot what
# texts mean: similarity fell from .45 to .24 on SIB-200's topics.
HEAD_ALONE = (
    f"train.freeze={FREEZE_ALL}",
    "train.learning_rate=1e-3",
    "train.max_steps=400",
)
Label = Callable[[Sequence[str], tuple[str, ...]], list[str | None]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundle")
    parser.add_argument("--work", type=Path, default=Path("build/nli"), help="of the checkpoint")
    # Where a model knows little its logits are near ties, which int8 decides otherwise: on the shipped
    # encoder the gate refuses it (.983 of the labels in Vietnamese, .99 is wanted).
    parser.add_argument("--precision", default="fp32", help="int8 where the gate lets it through")
    parser.add_argument("override", nargs="*", metavar="KEY=VALUE", help="e.g. train.epochs=1")
    options = parser.parse_args(arguments)
    overrides = [f"task.data={options.data}", *HEAD_ALONE, *options.override]
    made = config.named("xnli", "vanilla", overrides)
    trainer.train(made, options.work)
    order = export.Order(
        precision=options.precision,
        data=str(options.data),
        vector=True,
        exclude=SENSITIVE,
        projection=projection_of(made.encoder),
        notes="entailment, for labels that nobody trained for",
    )
    bundle = export.export(options.work, options.out, order)
    if options.out.resolve().parent == bundles.MODELS:
        refuse_large(bundle)
    bundle = judged(bundle, options.data, made.encoder)
    print(report(bundle))


def projection_of(encoder: str) -> str:
    """The map into the space in which the encoder learnt to compare texts, where it has one."""
    file = Path(pretrained.resolve(encoder)) / "projection.safetensors"
    return str(file) if file.is_file() else ""


def refuse_large(bundle: Bundle) -> None:
    size = sum(file.stat().st_size for file in bundle.path.rglob("*") if file.is_file())
    if size > LARGEST:
        raise ExportRefused(
            f"{size / 1e6:.1f} MB",
            f"is more than the {LARGEST / 1e6:.0f} MB that a shipped bundle may have",
            "export with --precision int8, or take a smaller encoder",
        )


def judged(bundle: Bundle, data: Path, encoder: str) -> Bundle:
    """The same bundle with its zero-shot scores in the manifest, and the better scorer as default."""
    served, alone = load(bundle.path), encoder_alone(encoder)
    found: dict[str, dict[str, float]] = {}
    for language in languages("sib200", data, "dev"):
        examples = load_split("sib200", data, "dev", language)
        labels = tuple(sorted({example.label for example in examples}))
        texts = [example.text for example in examples]
        found[language] = {
            "majority": majority(examples),
            "nli": accuracy(zero_shot(served, texts, labels, "nli"), examples),
            "similarity": accuracy(zero_shot(served, texts, labels, "similarity"), examples),
            "similarity_unprojected": accuracy(alone(texts, labels), examples),
            "count": float(len(examples)),
        }
    mean = {
        scorer: float(np.mean([row[scorer] for row in found.values()]))
        for scorer in ("nli", "similarity")
    }
    zero = {
        "task": "sib200 dev",
        "template": TEMPLATE,
        "scorer": max(mean, key=lambda scorer: mean[scorer]),
        "languages": found,
    }
    manifest = replace(bundle.manifest, checks=bundle.manifest.checks | {"zero_shot": zero})
    return bundles.save(bundle.path, manifest)


def zero_shot(
    served: Classifier, texts: Sequence[str], labels: tuple[str, ...], scorer: Scorer
) -> list[str | None]:
    """The label of each text, as the service would give it."""
    return [found.label for found in served.zero_shot(texts, labels, scorer=scorer)]


def encoder_alone(encoder: str) -> Label:
    """Similarity by the encoder's own vectors, without the projection that ships with it."""
    untrained = model.build(encoder, ["no", "yes"], 128).eval()

    @torch.inference_mode()
    def vectors(texts: Sequence[str]) -> torch.Tensor:
        rows = [
            untrained.encode(untrained.batch([Example(text, "no", "en") for text in part]))[0][:, 0]
            for part in (texts[start : start + 32] for start in range(0, len(texts), 32))
        ]
        return torch.nn.functional.normalize(torch.cat(rows), dim=-1)

    def label(texts: Sequence[str], labels: tuple[str, ...]) -> list[str | None]:
        likeness = vectors(texts) @ vectors([TEMPLATE.replace("{}", name) for name in labels]).T
        return [labels[number] for number in likeness.argmax(dim=1).tolist()]

    return label


def accuracy(given: Sequence[str | None], examples: Sequence[Example]) -> float:
    right = [label == example.label for label, example in zip(given, examples, strict=True)]
    return float(np.mean(right))


def majority(examples: Sequence[Example]) -> float:
    return Counter(example.label for example in examples).most_common(1)[0][1] / len(examples)


def report(bundle: Bundle) -> str:
    """Two tables in Markdown: entailment on XNLI, topics without training."""
    manifest = bundle.manifest
    zero: dict[str, Any] = manifest.checks["zero_shot"]
    lines = [
        f"{manifest.name} {manifest.version}; default scorer: {zero['scorer']}",
        "",
        "| XNLI, even dev rows | accuracy | majority |",
        "|---|---|---|",
    ]
    for language, row in manifest.scores.get("dev", {}).items():
        lines.append(f"| {language} | {row['accuracy']:.3f} | {row['majority']:.3f} |")
    columns = ("majority", "nli", "similarity", "similarity_unprojected")
    lines += ["", f"| SIB-200 dev, zero-shot | {' | '.join(columns)} |", "|---" * 5 + "|"]
    for language, row in zero["languages"].items():
        lines.append(f"| {language} | {' | '.join(f'{row[name]:.3f}' for name in columns)} |")
    means = [np.mean([row[name] for row in zero["languages"].values()]) for name in columns]
    lines.append(f"| mean | {' | '.join(f'{value:.3f}' for value in means)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
