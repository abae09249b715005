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
import hashlib
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xlt_training.data import load_split
from xlt_training.data.files import read_rows
from xlt_training.export import checkpoint as export
from xlt_training.loop import config, evaluate, trainer
from xlt_training.loop import model as models
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Example
from xlt_training.methods.xmixup import XMixup

from benchmarks.accuracy import kept
from benchmarks.statistics import DRAWS, difference, holm, resample, shown, weighted_accuracy
from xlt_serve import bundle as bundles
from xlt_serve.calibration import softmax

HERE = Path(__file__).parent
TASK, SOURCE = "sib200", "en"


RUNS: dict[str, tuple[str, list[str]]] = {
    "vanilla": ("vanilla", []),
    "translate_train": ("translate_train", []),
    "xmixup": ("xmixup", []),
    "xmixup_damage": ("xmixup", ["method.xmixup.damage=0.2"]),
    "fixed_ratio": ("xmixup", ["method.xmixup.ratio=fixed"]),
    "no_scheduled_sampling": ("xmixup", ["method.xmixup.scheduled_sampling=false"]),
    "no_consistency": ("xmixup", ["method.xmixup.consistency=none"]),
}
COLUMNS = (
    "plain",
    "translate_test",
    "translate_train",
    "paired",
    "paired_damage",
    "no_mixup_inference",
    "fixed_ratio",
    "no_scheduled_sampling",
    "no_consistency",
)
CLAIMS = ("plain", "translate_test")
DAMAGES = ("none", "drop 25 %", "drop 50 %", "drop 75 %", "other sentence")


@dataclass(frozen=True)
class Item:
    """A sentence with its recorded translation."""

    example: Example
    translation: str


@dataclass(frozen=True)
class Language:
    split: str
    items: list[Item]


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


def digest(items: Sequence[Item]) -> str:
    """Of the translations and of what they belong to."""
    told = [[item.example.id, item.translation] for item in items]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def write(out: Path, results: dict[str, Any]) -> None:
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(results))


def recorded(data: Path) -> dict[str, Language]:
    """language → the sentences of its test split, else dev, that have a recorded translation."""
    folder = data / TASK / "mt"
    out = {}
    for file in sorted(folder.glob(f"*-{SOURCE}.dev.tsv")):
        language = file.name.split("-")[0]
        split = "test" if (folder / f"{language}-{SOURCE}.test.tsv").is_file() else "dev"
        rows = read_rows(folder / f"{language}-{SOURCE}.{split}.tsv")
        translations = {row["id"]: row["text"] for row in rows if row["text"].strip()}
        examples = load_split(TASK, data, split, language)
        items = [Item(e, translations[e.id]) for e in examples if e.id in translations]
        out[language] = Language(split, items)
    return out


def one_run(
    options: argparse.Namespace, name: str, seed: int, items: dict[str, Language]
) -> dict[str, Any]:
    """Which sentences a trained model gets right in which way, and its λ; kept beside its run."""
    folder = options.work / f"{name}-{seed}"
    file, changes = RUNS[name]
    overrides = [f"seed={seed}", f"task.data={options.data}", f"encoder={options.encoder}"]
    overrides.append("select=last")  # see above
    made = config.named("sib200", file, [*overrides, *changes, *options.override])
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
    else:
        for heavy in ("model.safetensors", "slots.safetensors"):
            (folder / heavy).unlink(missing_ok=True)
    shutil.rmtree(folder / "logs", ignore_errors=True)
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


def before_training(
    encoder: str, items: dict[str, Language], most: int = 50
) -> dict[str, dict[str, float]]:
    """Does the entropy that λ hangs on know a bad translation, in the encoder as it comes? For each
    layer the chance that a damaged translation's is above an intact one's."""
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


def columns_of(runs: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, list[bool]]]]:
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


def compare(
    columns: dict[str, list[dict[str, list[bool]]]], items: dict[str, Language]
) -> dict[str, Any]:
    """Accuracy of each column, and the differences to plain, to translate-test and to paired.

    The bootstrap draws sentences; a sentence comes with all its languages and seeds.
    """
    keys = sorted({(mine.split, i.example.id) for mine in items.values() for i in mine.items})
    place = {key: number for number, key in enumerate(keys)}
    weights = resample([i for _, i in keys], [s for s, _ in keys], times=DRAWS, seed=0)
    draws: dict[str, dict[str, np.ndarray]] = {}
    scores: dict[str, dict[str, list[float]]] = {}
    for column, seeds in columns.items():
        draws[column], scores[column] = {}, {}
        for language, mine in items.items():
            correct = np.full((len(seeds), len(keys)), np.nan)
            numbers = [place[mine.split, i.example.id] for i in mine.items]
            for seed, run in enumerate(seeds):
                correct[seed, numbers] = run[language]
            draws[column][language] = weighted_accuracy(correct, weights)
            scores[column][language] = [float(np.mean(run[language])) for run in seeds]
        draws[column]["mean"] = np.mean([draws[column][lg] for lg in items], axis=0)
        scores[column]["mean"] = np.mean([scores[column][lg] for lg in items], axis=0).tolist()
    claims: dict[str, Any] = {}
    for column in columns:
        if column in CLAIMS:
            continue
        others = CLAIMS if column == "paired" else (*CLAIMS, "paired")
        for other in (c for c in others if c in columns):
            rows: dict[str, dict[str, float]] = {}
            for language in (*items, "mean"):
                seen = np.mean(scores[column][language]) - np.mean(scores[other][language])
                gap = difference(draws[column][language], draws[other][language], float(seen))
                rows[language] = asdict(gap)
            for language, p in zip(items, holm([rows[lg]["p"] for lg in items]), strict=True):
                rows[language]["p_holm"] = p
            worse = [lg for lg in items if rows[lg]["mean"] < 0 and rows[lg]["p_holm"] < 0.05]
            claims[f"{column} - {other}"] = {
                "rows": rows,
                "beats_on_the_mean": rows["mean"]["low"] > 0,
                "significantly_worse_in": worse,
            }
    return {"scores": scores, "differences": claims}


def by_split(
    columns: dict[str, list[dict[str, list[bool]]]], items: dict[str, Language]
) -> dict[str, dict[str, Any]]:
    """The differences of the means among languages scored on test, and among those scored on dev: what
    configs and encoder were settled on are dev sentences, so only test is out of their reach."""
    out: dict[str, dict[str, Any]] = {}
    for split in sorted({mine.split for mine in items.values()}, reverse=True):
        chosen = {language: mine for language, mine in items.items() if mine.split == split}
        made = compare(columns, chosen)["differences"]
        out[split] = {name: claim["rows"]["mean"] for name, claim in made.items()}
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


def cost(options: argparse.Namespace, items: dict[str, Language]) -> dict[str, Any]:
    """The paired graph against the plain one, and what a request costs beside its engines."""
    place: Any = options.bundle
    if not place:
        place = options.work / "bundle"
        if not (place / bundles.MANIFEST).is_file():
            order = export.Order(
                name="paired-cost", precision="int8", agreement=0.9, languages=[SOURCE]
            )
            export.export(options.work / "xmixup-0", place, order)
    return {"graphs": graph_ratios(place), "overhead": overheads(place, items, options)}


SHAPES = ((1, 16), (1, 32), (1, 128), (16, 32), (32, 64), (8, 128))


def graph_ratios(
    place: str | Path, rounds: int = 60, shapes: Sequence[tuple[int, int]] = SHAPES
) -> dict[str, dict[str, float]]:
    """Median time of both graphs at the same lengths, in turns."""
    from xlt_serve.classifier import Classifier as Served

    served = Served(bundles.load(place))
    sessions = {name: served.runners.of(name).session for name in ("plain", "paired")}
    out = {}
    for rows, length in shapes:
        ids = np.random.default_rng(0).integers(5, 60, (rows, length))
        mask = np.ones_like(ids)
        plain = {"input_ids": ids, "attention_mask": mask}
        feeds = {"plain": plain, "paired": plain | {"source_ids": ids, "source_mask": mask}}
        times: dict[str, list[float]] = {name: [] for name in sessions}
        for number in range(rounds + 2):
            for name, session in sessions.items():
                begun = time.perf_counter()
                session.run(feeds[name])
                if number >= 2:
                    times[name].append(time.perf_counter() - begun)
        medians = {name: 1000 * statistics.median(values) for name, values in times.items()}
        ratio = medians["paired"] / medians["plain"]
        shape = f"{rows}x{length}"
        out[shape] = {f"{name}_ms": value for name, value in medians.items()} | {"ratio": ratio}
    return out


def overheads(
    place: str | Path, items: dict[str, Language], options: argparse.Namespace
) -> dict[str, Any]:
    """(total − translator − bare session) ÷ total of paired prediction, with the real engines that
    are here; the cache is off."""
    from xlt_serve.classifier import Classifier as Served
    from xlt_serve.translation.apertium import Apertium
    from xlt_serve.translation.cache import Cache
    from xlt_serve.translation.ctranslate2 import CTranslate2
    from xlt_serve.translation.router import Engine, Router
    from xlt_serve.translation.translators import Translators

    made: dict[str, Callable[[], Any]] = {
        "es": Apertium,
        "zh": lambda: CTranslate2(Path("build/translators/zh-en")),
    }
    out: dict[str, Any] = {}
    for language, make in made.items():
        if language not in items:
            continue
        texts = [item.example.text for item in items[language].items][:96]
        try:
            engine = Engine(make(), timeout=120)
        except Exception as error:
            out[language] = {"skipped": str(error)}
            continue
        router = Router({"engine": engine}, cache=Cache(entries=0))
        with Translators(router) as translators:
            served = Served(bundles.load(place), translators=translators)
            session = served.runners.of("paired").session
            spent = 0.0
            bare = session.run

            def timed(feeds: Any, bare: Any = bare) -> Any:
                nonlocal spent
                begun = time.perf_counter()
                result = bare(feeds)
                spent += time.perf_counter() - begun
                return result

            session.run = timed  # type: ignore[method-assign]
            for size in (1, 32):
                served.predict(texts[:size], mode="paired", language=language)  # warm-up
                spent, before = 0.0, _engine_seconds(translators)
                begun = time.perf_counter()
                for start in range(0, len(texts), size):
                    served.predict(texts[start : start + size], mode="paired", language=language)
                total = time.perf_counter() - begun
                translating = _engine_seconds(translators) - before
                out[f"{language}, {size} at once"] = {
                    "engine": engine.name,
                    "total_ms_per_text": 1000 * total / len(texts),
                    "translator": translating / total,
                    "session": spent / total,
                    "rest": (total - translating - spent) / total,
                }
    return out


def _engine_seconds(translators: Any) -> float:
    rows = translators.statistics.snapshot()
    return float(max((row["engine_seconds"] for row in rows), default=0.0))


def markdown(results: dict[str, Any]) -> str:
    lines = [f"# Prediction with translations, SIB-200 on `{results['encoder']}`", ""]
    if results["overrides"]:
        lines += [f"Overrides: {' '.join(results['overrides'])}.", ""]
    lines += [f"Accuracy × 100, mean of {results['seeds']} seeds ± deviation over them;"]
    lines += ["sentences with a recorded translation, the same in every column.", ""]
    scores = results["scores"]
    columns = [column for column in COLUMNS if column in scores]
    lines += ["| language (split, sentences) | " + " | ".join(columns) + " |"]
    lines += ["|---" * (len(columns) + 1) + "|"]
    for language in [*results["languages"], "mean"]:
        about = results["languages"].get(language)
        head = f"{language} ({about['split']}, {about['items']})" if about else "**mean**"
        cells = [shown(scores[column][language]) for column in columns]
        lines.append(f"| {head} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Differences of the means, points [95 % interval] (bootstrap over sentences); in brackets those",
        "of the languages scored on test, by which nothing was chosen, and of those scored on dev:",
        "",
    ]
    splits = results["by_split"]
    for name, claim in results["differences"].items():
        worse = ", ".join(claim["significantly_worse_in"]) or "none"
        parts = "; ".join(f"{split} {interval(splits[split][name])}" for split in splits)
        lines.append(
            f"- {name}: {interval(claim['rows']['mean'])} ({parts}); significantly worse in: {worse}"
        )
    lines += ["", "## Damaged translations", ""]
    lines += [
        "Mean over languages and seeds: accuracy × 100, and for X-Mixup λ (and the chance that"
    ]
    lines += ["an intact translation's λ is above a damaged one's; 0.50: λ does not see it).", ""]
    lines += ["| model | " + " | ".join(DAMAGES) + " |", "|---" * (len(DAMAGES) + 1) + "|"]
    for name, rows in results["damage"].items():
        cells = []
        for damage in DAMAGES:
            row = rows[damage]
            cell = f"{100 * row['accuracy']:.1f}"
            if "ratio" in row:
                cell += f", λ {row['ratio']:.3f} ({row['separates']:.2f})"
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if "before_training" in results:
        lines += [
            "",
            "The entropy that λ hangs on, in the encoder before any training: the chance that",
        ]
        lines += ["a damaged translation's is above an intact one's.", ""]
        lines += ["| layer | " + " | ".join(DAMAGES[1:]) + " |", "|---" * len(DAMAGES) + "|"]
        for layer, row in results["before_training"].items():
            lines.append(f"| {layer} | " + " | ".join(f"{row[d]:.2f}" for d in DAMAGES[1:]) + " |")
    if "cost" in results:
        lines += [
            "",
            "## Cost",
            "",
            "| rows × tokens | plain ms | paired ms | ratio |",
            "|---|---|---|---|",
        ]
        for shape, row in results["cost"]["graphs"].items():
            lines.append(
                f"| {shape} | {row['plain_ms']:.2f} | {row['paired_ms']:.2f} | {row['ratio']:.2f} |"
            )
        lines += [
            "",
            "| request | ms a text | translator | session | rest |",
            "|---|---|---|---|---|",
        ]
        for name, row in results["cost"]["overhead"].items():
            if "skipped" in row:
                lines.append(f"| {name} | skipped: {row['skipped']} | | | |")
                continue
            shares = " | ".join(
                f"{100 * row[key]:.1f} %" for key in ("translator", "session", "rest")
            )
            lines.append(
                f"| {name} ({row['engine']}) | {row['total_ms_per_text']:.2f} | {shares} |"
            )
    return "\n".join(lines) + "\n"


def interval(row: dict[str, float]) -> str:
    return f"{100 * row['mean']:+.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def picture(results: dict[str, Any]) -> Any:
    """A figure: accuracy by column, and accuracy and λ against damage."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    columns = [column for column in COLUMNS if column in results["scores"]]
    means = [100 * float(np.mean(results["scores"][c]["mean"])) for c in columns]
    left.barh(columns[::-1], means[::-1], color="tab:blue")
    left.set_xlim(min(means) - 5, max(means) + 2)
    left.set_xlabel("accuracy × 100, mean of languages and seeds")
    for name, rows in results["damage"].items():
        accuracies = [100 * rows[damage]["accuracy"] for damage in DAMAGES]
        [line] = middle.plot(DAMAGES, accuracies, "o-", label=name)
        if "ratio" in rows["none"]:  # translate-test has none
            ratios = [rows[damage]["ratio"] for damage in DAMAGES]
            right.plot(DAMAGES, ratios, "o-", color=line.get_color())
    middle.set_ylabel("accuracy × 100")
    right.set_ylabel("λ, how much of the translation is mixed in")
    for panel in (middle, right):
        panel.tick_params(axis="x", labelrotation=20)
    if results["damage"]:
        middle.legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main()
