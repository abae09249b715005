"""Prediction with translations: ``python -m benchmarks.paired --data ../shared/data``.

SIB-200 with its recorded machine translations, one encoder, English labels: plain and translate-test
(both the vanilla model's), translate-train, X-Mixup paired, and X-Mixup's ablations; accuracy per
language on test where it is open, else on dev, over the sentences that have a recorded translation,
the same in every column. Then the translations are damaged (words dropped, another sentence): what
becomes of the accuracy and of λ, with and without ``damage`` in training. Then the cost, on a bundle.

No epoch is selected, the last one counts: languages without an open test set are scored on dev, whose
English sentences are those that selection would look at, and translate-test reads little else.

Resumable: every run is kept under ``--work`` and read, not repeated, unless its config, the encoder's
weights or the recorded translations have changed. Every run is evaluated on all languages that have
translations; ``--languages`` chooses among them for the report. Writes
``benchmarks/results/paired.json``, ``.md`` and ``.png``. Seven trainings a seed; two cores take about
five minutes for each of X-Mixup's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from xlt_training.loop import config, evaluate, trainer
from xlt_training.loop import model as models
from xlt_training.loop.network import Classifier
from xlt_training.methods.xmixup import XMixup

from benchmarks.paired_cost import cost
from benchmarks.paired_damage import DAMAGES, before_training, damaged, spoilt, streams
from benchmarks.paired_data import TASK, Language, digest, recorded
from benchmarks.paired_report import markdown, picture
from benchmarks.runs import kept, tidy
from xlt_serve.calibration import softmax
from xlt_serve.evaluation.bootstrap import Correct, bootstrap, gaps

HERE = Path(__file__).parent

RUNS: dict[str, tuple[str, list[str]]] = {
    "vanilla": ("vanilla", []),
    "translate_train": ("translate_train", []),
    "xmixup": ("xmixup", []),
    "xmixup_damage": ("xmixup", ["method.xmixup.damage=0.2"]),
    "fixed_ratio": ("xmixup", ["method.xmixup.ratio=fixed"]),
    "no_scheduled_sampling": ("xmixup", ["method.xmixup.scheduled_sampling=false"]),
    "no_consistency": ("xmixup", ["method.xmixup.consistency=none"]),
}
CLAIMS = ("plain", "translate_test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", default=",".join(RUNS), help="comma-separated; default: all")
    parser.add_argument("--languages", default="", help="to report; default: all recorded")
    parser.add_argument("--work", type=Path, default=Path("build/paired"))
    parser.add_argument("--override", nargs="*", default=[], help="config keys, for all runs")
    parser.add_argument("--bundle", default="", help="for the cost; default: made of xmixup-0")
    parser.add_argument("--no-cost", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "paired.json")
    options = parser.parse_args()
    there = recorded(options.data)
    chosen = options.languages.split(",") if options.languages else list(there)
    if unknown := sorted(set(chosen) - set(there)):
        parser.error(f"--languages {','.join(unknown)}: recorded are {', '.join(there)}")
    items = {language: there[language] for language in there if language in chosen}
    names = options.runs.split(",")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(options.seeds):
        for name in names:
            runs[name].append(one_run(options, name, seed, there))
    results: dict[str, Any] = {
        "encoder": options.encoder,
        "encoder_weights": trainer.weights_digest(options.encoder),
        "seeds": options.seeds,
        "overrides": options.override,
        "languages": {
            lg: {"split": mine.split, "items": len(mine.items)} for lg, mine in items.items()
        },
        **compare(columns_of(runs), items),
        "by_split": by_split(columns_of(runs), items),
        "damage": {name: damaged(runs[name], items) for name in runs if "ratios" in runs[name][0]},
    }
    if "vanilla" in runs:
        results["damage"]["translate_test"] = damaged(runs["vanilla"], items)
    results["before_training"] = before_training(options.encoder, items)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write(options.out, results)
    if not options.no_cost:
        results["cost"] = cost(options, items)
        write(options.out, results)
    picture(results).savefig(options.out.with_suffix(".png"), dpi=110)
    print(options.out.with_suffix(".md").read_text())


def write(out: Path, results: dict[str, Any]) -> None:
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(results))


def one_run(
    options: argparse.Namespace, name: str, seed: int, items: dict[str, Language]
) -> dict[str, Any]:
    """Which sentences a trained model gets right in which way, and its λ; kept beside its run."""
    folder = options.work / f"{name}-{seed}"
    method, changes = RUNS[name]
    overrides = [f"seed={seed}", f"task.data={options.data}", f"encoder={options.encoder}"]
    overrides.append("select=last")  # no epoch is selected, see above
    made = config.named(TASK, method, [*overrides, *changes, *options.override])
    scored = {
        language: [mine.split, len(mine.items), digest(mine.items)]
        for language, mine in items.items()
    }
    stamp = {"run": trainer.stamp(made), "scored": scored}
    if done := kept(folder / "evaluated.json", stamp):
        return done
    begun = time.perf_counter()
    trainer.train(made, folder, judge=False)
    minutes = (time.perf_counter() - begun) / 60
    network, _ = models.load(folder)
    mixup = next((m for s in made.stages for m in s.methods if isinstance(m, XMixup)), None)
    out = evaluated(name, network, mixup, items)
    out |= {"stamp": stamp, "overrides": options.override, "minutes": minutes}
    (folder / "evaluated.json").write_text(json.dumps(out))
    if (name, seed) == ("xmixup", 0):  # the bundle whose cost is measured is made of this one
        shutil.rmtree(options.work / "bundle", ignore_errors=True)
    tidy(folder, weights=(name, seed) == ("xmixup", 0))
    means = {
        way: round(float(np.mean([np.mean(v) for v in per.values()])), 3)
        for way, per in out["correct"].items()
    }
    print(f"{name} seed {seed}: {means}, {minutes:.1f} minutes", flush=True)
    return out


def evaluated(
    name: str, network: Classifier, mixup: XMixup | None, items: dict[str, Language]
) -> dict[str, Any]:
    correct: dict[str, dict[str, list[bool]]] = {}
    ratios: dict[str, dict[str, list[float]]] = {}
    entropies: dict[str, dict[str, float]] = {}

    def note(way: str, language: str, probabilities: np.ndarray) -> None:
        truth = [network.labels.index(i.example.label) for i in items[language].items]
        right = probabilities.argmax(axis=1) == np.array(truth)
        correct.setdefault(way, {})[language] = right.tolist()

    for language, mine in items.items():
        examples = [item.example for item in mine.items]
        if mixup is None:
            note("plain", language, evaluate.logits(network, examples))
        for damage in DAMAGES:
            texts = spoilt([item.translation for item in mine.items], damage)
            sources = [e.with_texts([t]) for e, t in zip(examples, texts, strict=True)]
            if mixup is None:
                if name == "vanilla":
                    note(f"translate_test {damage}", language, evaluate.logits(network, sources))
                continue
            mixed = streams(mixup, network, examples, sources)
            note(f"paired {damage}", language, mixed["target"] + mixed["source"])
            note(f"target {damage}", language, mixed["target"])
            ratios.setdefault(damage, {})[language] = mixed["ratio"].tolist()
            entropies.setdefault(damage, {})[language] = float(mixed["entropy"].mean())
            if damage == "none":
                plain = softmax(evaluate.logits(network, examples))
                note("plain", language, plain)
                note("no_mixup_inference", language, plain + mixed["source"])
    out: dict[str, Any] = {"correct": correct}
    if mixup is not None:
        gate: Any = network.slots["mixup"]
        out |= {"ratios": ratios, "entropies": entropies}
        out["gate"] = {"weight": gate.weight.item(), "bias": gate.bias.item()}
    return out


def columns_of(runs: dict[str, list[dict[str, Any]]]) -> Correct:
    """column → for each seed, language → which sentences are right."""
    places = {
        "plain": ("vanilla", "plain"),
        "translate_test": ("vanilla", "translate_test none"),
        "translate_train": ("translate_train", "plain"),
        "paired": ("xmixup", "paired none"),
        "paired_damage": ("xmixup_damage", "paired none"),
        "no_mixup_inference": ("xmixup", "no_mixup_inference"),
        "fixed_ratio": ("fixed_ratio", "paired none"),
        "no_scheduled_sampling": ("no_scheduled_sampling", "paired none"),
        "no_consistency": ("no_consistency", "paired none"),
    }
    return {
        column: [run["correct"][way] for run in runs[name]]
        for column, (name, way) in places.items()
        if name in runs
    }


def compare(columns: Correct, items: dict[str, Language]) -> dict[str, Any]:
    """Accuracy of each column, and the differences to plain, to translate-test and to paired."""
    sentences = {
        language: [(mine.split, item.example.id) for item in mine.items]
        for language, mine in items.items()
    }
    sampled = bootstrap(columns, sentences, {"mean": list(items)})
    claims: dict[str, Any] = {}
    for column in columns:
        if column in CLAIMS:
            continue
        others = CLAIMS if column == "paired" else (*CLAIMS, "paired")
        for other in (c for c in others if c in columns):
            rows = gaps(sampled, column, other)
            worse = [lg for lg in items if rows[lg]["mean"] < 0 and rows[lg]["p_holm"] < 0.05]
            claims[f"{column} - {other}"] = {
                "rows": rows,
                "beats_on_the_mean": rows["mean"]["low"] > 0,
                "significantly_worse_in": worse,
            }
    return {"scores": sampled.scores, "differences": claims}


def by_split(columns: Correct, items: dict[str, Language]) -> dict[str, dict[str, Any]]:
    """The differences of the means among languages scored on test, and among those scored on dev.
    Configs and encoder were chosen on dev sentences, so only test is out of their reach."""
    out: dict[str, dict[str, Any]] = {}
    for split in sorted({mine.split for mine in items.values()}, reverse=True):
        chosen = {language: mine for language, mine in items.items() if mine.split == split}
        made = compare(columns, chosen)["differences"]
        out[split] = {name: claim["rows"]["mean"] for name, claim in made.items()}
    return out


if __name__ == "__main__":
    main()
