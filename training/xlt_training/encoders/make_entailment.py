"""The entailment bundle for zero-shot labels, made and judged by one command:

    python -m xlt_training.encoders.make_entailment --data ../shared/data

The encoder goes on training for ``--minutes``, most of it on English entailment pairs with words put
into other languages (``entailment.toml``); a head is trained on it, and exported with the text's vector
as a second output. What was measured stands in the manifest: XNLI dev per language, and SIB-200 topics as
labels that it was never trained for, by scorer and template. The scorer and the template that are best
on SIB's dev rows over all languages are the bundle's defaults; the head was selected on MNLI-matched.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier, load
from xlt_serve.errors import ExportRefused
from xlt_serve.modes.templates import NATIVE, TEMPLATE, TEMPLATES
from xlt_serve.modes.zero_shot import Scorer
from xlt_training.data import languages, load_split
from xlt_training.encoders import free_sets
from xlt_training.encoders.make import SENSITIVE
from xlt_training.exporting import checkpoint as export
from xlt_training.loop import config, pretrained, trainer
from xlt_training.loop.settings import FREEZE_ALL
from xlt_training.loop.types import Example

NAME = "entailment"
LARGEST = 25_000_000
HERE = Path(__file__).parent
HEAD_ALONE = (
    f"train.freeze={FREEZE_ALL}",
    "train.learning_rate=1e-3",
    "train.batch_size=128",
    "train.epochs=1",
    'task.text="premise"',
    'task.pair="hypothesis"',
)
SCORERS: tuple[Scorer, ...] = ("nli", "similarity")
WAYS = {f"{scorer} {kind}": (scorer, kind) for scorer in SCORERS for kind in ("english", NATIVE)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=bundles.MODELS / NAME, help="of the bundle")
    parser.add_argument("--work", type=Path, default=Path("build/nli"))
    parser.add_argument("--minutes", type=float, default=40.0, help="of the encoder; 0: none")
    parser.add_argument("--encoder", type=Path, default=pretrained.SHIPPED / "small")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--agreement", type=float, default=export.AGREEMENT)
    parser.add_argument("override", nargs="*", metavar="KEY=VALUE", help="e.g. train.epochs=1")
    options = parser.parse_args(arguments)
    encoder = further(options) if options.minutes else options.encoder
    made = config.named("xnli", "vanilla", task_of(options, encoder))
    shutil.rmtree(options.work / "head", ignore_errors=True)  # of another encoder, perhaps
    trainer.train(made, options.work / "head")
    order = export.Order(
        name=NAME,
        precision=options.precision,
        agreement=options.agreement,
        vector=True,
        exclude=SENSITIVE,
        projection=projection_of(encoder),
        notes="entailment, for labels that nobody trained for",
    )
    bundle = export.export(options.work / "head", options.out, order)
    if options.out.resolve().parent == bundles.MODELS:
        refuse_large(bundle)
    print(report(judged(bundle, options.data)))


def further(options: argparse.Namespace) -> Path:
    """The encoder after ``--minutes`` more, in a process that chooses its threads and its allocator."""
    out: Path = options.work / "encoder"
    command = [sys.executable, "-m", "xlt_training.encoders.distill", "--data", str(options.data)]
    command += ["--config", str(HERE / "small.toml"), str(HERE / "entailment.toml")]
    command += ["--begin", str(options.encoder), "--out", str(out), "--cool-down", "0.4"]
    command += ["--work", str(options.work / "distil"), "--minutes", str(options.minutes)]
    subprocess.run(command, check=True)
    return out


def task_of(options: argparse.Namespace, encoder: Path) -> list[str]:
    """Config keys: the free entailment pairs, judged on MNLI-matched in English and on XNLI elsewhere."""
    train, data = options.work / "train.tsv", options.data
    write_pairs(train, data)
    dev = {lg: data / "xnli" / f"dev-{lg}.tsv" for lg in languages("xnli", data, "dev")}
    dev["en"] = data / "nli" / "dev-mnli-matched.tsv"
    keys = [f'task.dev.{language}="{file}"' for language, file in dev.items()]
    own = ['task.name="files"', 'task.data=""', f'task.train="{train}"']
    return [f'encoder="{encoder}"', *own, *keys, *HEAD_ALONE, *options.override]


def write_pairs(file: Path, data: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, dialect="excel-tab")
        table.writerow(["premise", "hypothesis", "label"])
        for premise, hypothesis, label in free_sets.entailment(data):
            table.writerow([premise, hypothesis, free_sets.ENTAILMENT_LABELS[label]])


def projection_of(encoder: Path) -> str:
    """The map into the space in which the encoder learnt to compare texts, where it has one."""
    file = encoder / "projection.safetensors"
    return str(file) if file.is_file() else ""


def refuse_large(bundle: Bundle) -> None:
    size = sum(file.stat().st_size for file in bundle.path.rglob("*") if file.is_file())
    if size > LARGEST:
        raise ExportRefused(
            f"{size / 1e6:.1f} MB",
            f"is more than the {LARGEST / 1e6:.0f} MB that a shipped bundle may have",
            "export with --precision int8, or take a smaller encoder",
        )


def judged(bundle: Bundle, data: Path) -> Bundle:
    """The same bundle with what it measures in the manifest, and the best way of zero-shot as default."""
    served = load(bundle.path)
    found = {
        language: topics(served, data, language) for language in languages("sib200", data, "dev")
    }
    means = {way: float(np.mean([row[way] for row in found.values()])) for way in WAYS}
    scorer, kind = WAYS[max(means, key=lambda way: means[way])]
    zero = {
        "task": "sib200 dev",
        "scorer": scorer,
        "template": TEMPLATE if kind == "english" else TEMPLATES | {"*": TEMPLATE},
        "means": means,
        "languages": found,
    }
    pairs = {lg: entailment(served, data, lg) for lg in languages("xnli", data, "dev")}
    checks = bundle.manifest.checks | {"zero_shot": zero, "xnli": pairs}
    return bundles.save(bundle.path, replace(bundle.manifest, checks=checks))


def topics(served: Classifier, data: Path, language: str) -> dict[str, float]:
    """Accuracy on SIB-200 dev in each way, beside the commonest label."""
    examples = load_split("sib200", data, "dev", language)
    labels = tuple(sorted({example.label for example in examples}))
    texts = [example.text for example in examples]
    out = {"majority": majority(examples), "count": float(len(examples))}
    for way, (scorer, kind) in WAYS.items():
        template = TEMPLATE if kind == "english" else NATIVE
        given = served.zero_shot(texts, labels, scorer=scorer, template=template, language=language)
        out[way] = accuracy([each.label for each in given], examples)
    return out


def entailment(served: Classifier, data: Path, language: str) -> dict[str, float]:
    """Accuracy on all of XNLI dev."""
    examples = load_split("xnli", data, "dev", language)
    items = [(example.text, example.pair) for example in examples]
    given = served.predict(items, abstain_below=0)
    right = accuracy([each.label for each in given], examples)
    return {"accuracy": right, "majority": majority(examples), "count": float(len(examples))}


def accuracy(given: Sequence[str | None], examples: Sequence[Example]) -> float:
    right = [label == example.label for label, example in zip(given, examples, strict=True)]
    return float(np.mean(right))


def majority(examples: Sequence[Example]) -> float:
    return Counter(example.label for example in examples).most_common(1)[0][1] / len(examples)


def report(bundle: Bundle) -> str:
    """Two tables in Markdown: entailment on XNLI, topics without training."""
    manifest = bundle.manifest
    zero: dict[str, Any] = manifest.checks["zero_shot"]
    chosen = max(zero["means"], key=lambda way: zero["means"][way])
    lines = [
        f"{manifest.name} {manifest.version}; default way of zero-shot: {chosen}",
        "",
        "| XNLI dev | accuracy | majority |",
        "|---|---|---|",
    ]
    pairs: dict[str, dict[str, float]] = manifest.checks["xnli"]
    for language, row in pairs.items():
        lines.append(f"| {language} | {row['accuracy']:.3f} | {row['majority']:.3f} |")
    others = [row["accuracy"] for language, row in pairs.items() if language != "en"]
    lines.append(f"| mean but en | {np.mean(others):.3f} | |")
    columns = ("majority", *WAYS)
    lines += ["", f"| SIB-200 dev, zero-shot | {' | '.join(columns)} |", "|---" * 6 + "|"]
    for language, row in zero["languages"].items():
        lines.append(f"| {language} | {' | '.join(f'{row[name]:.3f}' for name in columns)} |")
    means = [np.mean([row[name] for row in zero["languages"].values()]) for name in columns]
    lines.append(f"| mean | {' | '.join(f'{value:.3f}' for value in means)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
