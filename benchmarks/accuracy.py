"""Methods side by side: ``python -m benchmarks.accuracy --task sib200 --data ../shared/data``.

Every method of ``training/configs/TASK`` × seeds on one encoder, zero-shot from English labels,
selected on English dev. Resumable: a run that has ended is read, not repeated. Writes
``benchmarks/results/accuracy-TASK.json``, a Markdown table with mean ± deviation over seeds and a
paired bootstrap against vanilla (over sentences, all languages and seeds together; Holm over
languages), and a picture. SIB-200 is scored on test where it is open, else on dev; other tasks on
dev. ``supervised`` trains on the human translations with their labels: an upper bound, not a
method. X-Mixup is scored as it predicts: paired with the recorded translation where there is one.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.statistics import difference, holm, resample, weighted_accuracy
from training import config, evaluate, fisher, trainer
from training import model as models
from training.data import languages, load_split
from training.data.files import read_rows
from training.methods.xmixup import XMixup
from training.types import Example
from xlt_serve.calibrate import softmax

HERE = Path(__file__).parent
CONFIGS = HERE.parent / "training" / "configs"
DISTANT = frozenset({"ar", "hi", "ja", "kk", "ko", "sw", "th", "tr", "ur", "vi", "zh", "id"})
UPPER = "supervised"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="sib200")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--methods", default="", help="comma-separated; default: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/accuracy"))
    parser.add_argument("--override", nargs="*", default=[], help="config keys, for all methods")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    out = options.out or HERE / "results" / f"accuracy-{options.task}.json"
    items = evaluation_items(options.task, options.data)
    names = (
        options.methods.split(",") if options.methods else all_methods(options.task, options.data)
    )
    if "ewc" in names:
        make_fisher(options)
    runs: dict[str, list[dict[str, list[bool]]]] = {}
    for seed in range(options.seeds):
        for name in names:
            runs.setdefault(name, []).append(one_run(options, name, seed, items))
            if "vanilla" in runs:
                results = compare(runs, items) | {
                    "task": options.task,
                    "encoder": options.encoder,
                    "overrides": options.override,
                }
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(results, indent=1) + "\n")
                out.with_suffix(".md").write_text(markdown(results))
    draw(json.loads(out.read_text()), out.with_suffix(".png"))
    print(out.with_suffix(".md").read_text())


def all_methods(task: str, data: Path) -> list[str]:
    names = sorted(file.stem for file in (CONFIGS / task).glob("*.toml"))
    if not (data / task / "mt").is_dir():
        names = [name for name in names if name not in ("translate_train", "xmixup")]
    names.sort(key=lambda name: name != "vanilla")
    return [*names, *([UPPER] if len(languages(task, data, "train")) > 1 else [])]


def evaluation_items(task: str, data: Path) -> dict[str, tuple[str, list[Example]]]:
    """language → the split it is scored on, and its examples."""
    tested = languages(task, data, "test")
    out = {}
    for language in languages(task, data, "dev"):
        split = "test" if language in tested else "dev"
        out[language] = (split, load_split(task, data, split, language))
    return out


def make_fisher(options: argparse.Namespace) -> None:
    folder = options.work / "fisher"
    if not (folder / "fr.safetensors").is_file():
        texts = (options.data / "text" / "fr.txt").read_text(encoding="utf-8").splitlines()
        fisher.save(folder, "fr", fisher.compute(options.encoder, texts))


def one_run(
    options: argparse.Namespace,
    name: str,
    seed: int,
    items: dict[str, tuple[str, list[Example]]],
) -> dict[str, list[bool]]:
    """language → which examples a trained method got right; kept beside its run."""
    folder = options.work / f"{options.task}-{name}-{seed}"
    kept = folder / "correct.json"
    if kept.is_file():
        done: dict[str, list[bool]] = json.loads(kept.read_text())
        return done
    file = CONFIGS / options.task / f"{'vanilla' if name == UPPER else name}.toml"
    overrides = [f"seed={seed}", f"task.data={options.data}", f"encoder={options.encoder}"]
    if name == UPPER:
        others = [lg for lg in languages(options.task, options.data, "train") if lg != "en"]
        overrides += [f"task.supervised={json.dumps(others)}", "train.epochs=2"]
    made = config.load(file, overrides + options.override)
    for stage in made.stages:
        for method in stage.methods:
            if hasattr(method, "fisher"):
                method.folder = str(options.work / "fisher")
    trainer.train(made, folder)
    network, _ = models.load(folder)
    out = {}
    for language, (split, examples) in items.items():
        truth = [
            network.labels.index(e.label) if e.label in network.labels else -1 for e in examples
        ]
        scores = evaluate.logits(network, examples)
        if name == "xmixup":
            method = next(m for s in made.stages for m in s.methods if isinstance(m, XMixup))
            scores = paired(method, network, examples, scores, options, split, language)
        out[language] = [bool(a == b) for a, b in zip(scores.argmax(axis=1), truth, strict=True)]
    kept.write_text(json.dumps(out))
    for heavy in ("model.safetensors", "slots.safetensors"):
        (folder / heavy).unlink(missing_ok=True)
    shutil.rmtree(folder / "logs", ignore_errors=True)
    print(f"{name} seed {seed}: {np.mean([np.mean(v) for v in out.values()]):.3f}", flush=True)
    return out


def paired(
    method: XMixup,
    network: Any,
    examples: Sequence[Example],
    plain: np.ndarray,
    options: argparse.Namespace,
    split: str,
    language: str,
) -> np.ndarray:
    """Mean probabilities of both streams where there is a translation, the plain pass elsewhere."""
    out = softmax(plain)
    if language == "en":
        sources = {e.id: e.text for e in examples}
    else:
        file = options.data / options.task / "mt" / f"{language}-en.{split}.tsv"
        sources = {r["id"]: r["text"] for r in read_rows(file)} if file.is_file() else {}
    rows = [i for i, e in enumerate(examples) if e.id in sources]
    if rows:
        texts = [examples[i].with_texts([sources[examples[i].id]]) for i in rows]
        out[rows] = evaluate.paired_probabilities(
            method, network, [examples[i] for i in rows], texts
        )
    return out


def compare(
    runs: dict[str, list[dict[str, list[bool]]]], items: dict[str, tuple[str, list[Example]]]
) -> dict[str, Any]:
    """Scores of each method per language and group, and its difference to vanilla."""
    # A sentence is known by its split and id: languages share it.
    keys = sorted({(split, e.id) for split, examples in items.values() for e in examples})
    place = {key: number for number, key in enumerate(keys)}
    weights = resample([i for _, i in keys], [s for s, _ in keys], times=2000, seed=0)
    groups = {
        "all": list(items),
        "target": [lg for lg in items if lg != "en"],
        "distant": [lg for lg in items if lg in DISTANT],
    }
    groups = {group: members for group, members in groups.items() if members}
    draws: dict[str, dict[str, np.ndarray]] = {}
    scores: dict[str, dict[str, list[float]]] = {}
    for name, seeds in runs.items():
        draws[name], scores[name] = {}, {}
        for language, (split, examples) in items.items():
            correct = np.full((len(seeds), len(keys)), np.nan)
            columns = [place[split, e.id] for e in examples]
            for seed, run in enumerate(seeds):
                correct[seed, columns] = run[language]
            draws[name][language] = weighted_accuracy(correct, weights)
            scores[name][language] = [float(np.mean(run[language])) for run in seeds]
        for group, members in groups.items():
            draws[name][group] = np.mean([draws[name][lg] for lg in members], axis=0)
            scores[name][group] = np.mean([scores[name][lg] for lg in members], axis=0).tolist()
    methods: dict[str, Any] = {}
    for name in runs:
        rows: dict[str, Any] = {}
        for column in (*items, *groups):
            observed = float(np.mean(scores[name][column]) - np.mean(scores["vanilla"][column]))
            gap = difference(draws[name][column], draws["vanilla"][column], observed)
            rows[column] = {"seeds": scores[name][column], "against_vanilla": asdict(gap)}
        adjusted = holm([rows[lg]["against_vanilla"]["p"] for lg in items])
        for language, p in zip(items, adjusted, strict=True):
            rows[language]["against_vanilla"]["p_holm"] = p
        methods[name] = rows
    splits = {language: split for language, (split, _) in items.items()}
    return {"methods": methods, "groups": groups, "splits": splits}


def markdown(results: dict[str, Any]) -> str:
    columns = [*results["groups"], *results["splits"]]
    lines = [f"# {results['task']}: methods on `{results['encoder']}`", ""]
    if results["overrides"]:
        lines += [f"Trimmed for two cores: {' '.join(results['overrides'])}.", ""]
    lines += [
        "Accuracy × 100, mean ± deviation over seeds; `*`: differs from vanilla (paired bootstrap"
    ]
    lines += [
        "over sentences, p < .05; per language after Holm). Languages on test where it is open,"
    ]
    lines += ["else on dev. `supervised`: human labels of every language, an upper bound.", ""]
    lines += ["| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, rows in results["methods"].items():
        cells = []
        for column in columns:
            row = rows[column]
            p = row["against_vanilla"].get("p_holm", row["against_vanilla"]["p"])
            star = "*" if name != "vanilla" and p < 0.05 else ""
            spread = f" ± {100 * np.std(row['seeds']):.1f}" if column in results["groups"] else ""
            cells.append(f"{100 * np.mean(row['seeds']):.1f}{spread}{star}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any], file: Path) -> None:
    """The difference to vanilla on the target languages, with its interval."""
    from matplotlib.figure import Figure

    rows = [
        (name, rows["target"]["against_vanilla"])
        for name, rows in results["methods"].items()
        if name != "vanilla"
    ]
    rows.sort(key=lambda row: row[1]["mean"])
    figure = Figure(figsize=(7, 0.32 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    for height, (_, gap) in enumerate(rows):
        axes.plot([100 * gap["low"], 100 * gap["high"]], [height, height], color="tab:blue")
        axes.plot(100 * gap["mean"], height, "o", color="tab:blue")
    axes.axvline(0, color="grey", linewidth=1)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_xlabel("points against vanilla, mean of the target languages (95 % interval)")
    axes.set_title(f"{results['task']}, encoder {results['encoder']}")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
