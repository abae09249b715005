"""Methods side by side: ``python -m benchmarks.accuracy --task sib200 --data ../shared/data``.

Every method of ``training/xlt_training/configs/methods`` × seeds on one encoder, zero-shot from English labels,
selected on English dev. Resumable: a run that has ended is read, not repeated, unless its config,
the encoder's weights or what it is scored on have changed: then its folder is removed and it is
trained again. Writes ``benchmarks/results/accuracy-TASK.json``, a Markdown table with mean ±
deviation over seeds and a paired bootstrap against vanilla (over sentences, all languages and seeds
together; Holm over languages), and a picture. SIB-200 is scored on test where it is open, else on
dev; other tasks on dev. ``supervised`` trains on the human translations with their labels: an upper
bound, not a method. X-Mixup is scored as it predicts: paired with the recorded translation where
there is one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from xlt_training.data import languages, load_split
from xlt_training.encoders.corpus import free_of_evaluation
from xlt_training.loop import config, evaluate, fisher, recipes, trainer
from xlt_training.loop import model as models
from xlt_training.loop.types import Example
from xlt_training.methods.xmixup import XMixup

from benchmarks.markdown import table
from benchmarks.runs import kept, tidy
from xlt_serve.calibration import softmax
from xlt_serve.evaluation.bootstrap import Correct, bootstrap, gaps, shown
from xlt_serve.evaluation.groups import groups as groups_of
from xlt_serve.files.rows import read_rows

HERE = Path(__file__).parent
UPPER = "supervised"
ROWS = {UPPER: "supervised upper bound", "ewc": "ewc (Fisher of fr)", "rs_rp": "RS-RP (uniform)"}
"""Names in tables and pictures, where they are not the config's."""

Items = dict[str, tuple[str, list[Example]]]
"""language → the split it is scored on, and its examples."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="sib200")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--encoder", default="small")
    parser.add_argument(
        "--methods", default="", help="comma-separated, vanilla comes by itself; default: all"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/accuracy"))
    parser.add_argument(
        "--override",
        nargs="*",
        default=[],
        metavar="[METHOD:]KEY=VALUE",
        help="config keys, for all methods or for one; what a [stage.train] sets, as isozcl's does "
        "epochs, is not reached by train.epochs: use isozcl:train.max_steps",
    )
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    out = options.out or HERE / "results" / f"accuracy-{options.task}.json"
    items = evaluation_items(options.task, options.data)
    known = all_methods(options.task, options.data)
    names = options.methods.split(",") if options.methods else known
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"--methods {','.join(unknown)}: not among {', '.join(known)}")
    named = {one.partition("=")[0].rpartition(":")[0] for one in options.override} - {""}
    if unknown := sorted(named - set(known)):
        parser.error(f"--override {','.join(unknown)}: not among {', '.join(known)}")
    if "ewc" in names:
        make_fisher(options)
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        for name in with_vanilla(names):
            runs.setdefault(name, []).append(one_run(options, name, seed, items))
        # After each seed, so that there is a table before the last.
        results = compare({n: [run["correct"] for run in r] for n, r in runs.items()}, items)
        results |= {
            "task": options.task,
            "encoder": options.encoder,
            "encoder_weights": one_encoder(options.encoder, runs),
            "runs": {
                n: [{"overrides": run["overrides"], "stages": run["stages"]} for run in r]
                for n, r in runs.items()
            },
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n")
        out.with_suffix(".md").write_text(markdown(results))
    draw(json.loads(out.read_text()), out.with_suffix(".png"))
    print(out.with_suffix(".md").read_text())


def all_methods(task: str, data: Path) -> list[str]:
    names = recipes.methods()
    if not (data / task / "mt").is_dir():
        names = [name for name in names if name not in ("translate_train", "xmixup")]
    several = len(languages(task, data, "train")) > 1
    return with_vanilla([*names, *([UPPER] if several else [])])


def with_vanilla(names: Sequence[str]) -> list[str]:
    """Vanilla first, given or not: the others are compared with it."""
    return ["vanilla", *(name for name in names if name != "vanilla")]


def one_encoder(encoder: str, runs: dict[str, list[dict[str, Any]]]) -> str:
    """The digest of the weights that all runs began with; a benchmark takes hours, and they may have
    been made again meanwhile."""
    found = {run["stamp"]["run"]["encoder_weights"] for seeds in runs.values() for run in seeds}
    if len(found) > 1:
        raise SystemExit(
            f"{encoder}: its weights changed during the benchmark ({', '.join(sorted(found))}); call "
            "it again, which repeats the runs on the old ones"
        )
    return str(found.pop())


def evaluation_items(task: str, data: Path) -> Items:
    tested = languages(task, data, "test")
    out = {}
    for language in languages(task, data, "dev"):
        split = "test" if language in tested else "dev"
        out[language] = (split, load_split(task, data, split, language))
    return out


def overrides_of(name: str, given: Sequence[str]) -> list[str]:
    """Of ``[METHOD:]KEY=VALUE`` those for all methods, then those for this one."""
    split = [(one.partition("=")[0].rpartition(":"), one) for one in given]
    for_all = [one for (method, _, _), one in split if not method]
    return for_all + [one[len(name) + 1 :] for (method, _, _), one in split if method == name]


def make_fisher(options: argparse.Namespace) -> None:
    """EWC's, of this encoder on French text, less what any evaluation set has of it."""
    folder = options.work / "fisher"
    file, noted = folder / "fr.safetensors", folder / "fr.json"
    stamp = {
        "encoder_weights": trainer.weights_digest(options.encoder),
        "text": str(options.data / "text" / "fr.txt"),
        "left_out": "evaluation sentences and the output layer",
    }
    if file.is_file() and noted.is_file() and json.loads(noted.read_text()) == stamp:
        return
    if file.is_file():
        print(f"{file}: is of another encoder or text; made again", flush=True)
    noted.unlink(missing_ok=True)
    lines = (options.data / "text" / "fr.txt").read_text(encoding="utf-8").split("\n")
    texts = free_of_evaluation(lines, options.data)
    source = fisher.source_of(options.encoder, stamp["encoder_weights"], texts)
    fisher.save(folder, "fr", fisher.compute(options.encoder, texts), source)
    noted.write_text(json.dumps(stamp))


def stages_of(log: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """How long each stage was trained, from its log."""
    numbers = sorted({entry["stage"] for entry in log})
    return [
        {
            unit: max(entry.get(key, 0) for entry in log if entry["stage"] == number)
            for unit, key in (("epochs", "epoch"), ("steps", "step"))
        }
        for number in numbers
    ]


def one_run(options: argparse.Namespace, name: str, seed: int, items: Items) -> dict[str, Any]:
    """``correct``: language → which examples a trained method got right; its ``overrides`` and how
    long its ``stages`` were. Kept beside its run."""
    folder = options.work / f"{options.task}-{name}-{seed}"
    overrides = [f"seed={seed}", f"task.data={options.data}", f"encoder={options.encoder}"]
    if name == UPPER:
        others = [lg for lg in languages(options.task, options.data, "train") if lg != "en"]
        overrides += [f"task.supervised={json.dumps(others)}", "train.epochs=2"]
    given = overrides_of(name, options.override)
    method = "vanilla" if name == UPPER else name
    made = config.named(options.task, method, overrides + given)
    for stage in made.stages:
        for method in stage.methods:
            if hasattr(method, "fisher"):
                method.folder = str(options.work / "fisher")
    scored = {language: [split, len(examples)] for language, (split, examples) in items.items()}
    stamp = {"run": trainer.stamp(made), "scored": scored}
    if done := kept(folder / "correct.json", stamp):
        return done
    metrics = trainer.train(made, folder, judge=False)
    network, _ = models.load(folder)
    out: dict[str, list[bool]] = {}
    for language, (split, examples) in items.items():
        truth = [
            network.labels.index(e.label) if e.label in network.labels else -1 for e in examples
        ]
        scores = evaluate.logits(network, examples)
        if name == "xmixup":
            method = next(m for s in made.stages for m in s.methods if isinstance(m, XMixup))
            scores = paired(method, network, examples, scores, options, split, language)
        out[language] = [bool(a == b) for a, b in zip(scores.argmax(axis=1), truth, strict=True)]
    found = {
        "stamp": stamp,
        "overrides": given,
        "stages": stages_of(metrics["log"]),
        "correct": out,
    }
    (folder / "correct.json").write_text(json.dumps(found))
    tidy(folder)
    print(f"{name} seed {seed}: {np.mean([np.mean(v) for v in out.values()]):.3f}", flush=True)
    return found


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
    columns = ("text",) if examples[0].pair is None else ("text", "pair")
    if language == "en":
        sources = {e.id: list(e.texts()) for e in examples}
    else:
        file = options.data / options.task / "mt" / f"{language}-en.{split}.tsv"
        found = read_rows(file) if file.is_file() else []
        sources = {row["id"]: [row[column] for column in columns] for row in found}
    rows = [i for i, e in enumerate(examples) if e.id in sources]
    if rows:
        texts = [examples[i].with_texts(sources[examples[i].id]) for i in rows]
        out[rows] = evaluate.paired_probabilities(
            method, network, [examples[i] for i in rows], texts
        )
    return out


def compare(runs: Correct, items: Items) -> dict[str, Any]:
    """Scores of each method per language and group, and its difference to vanilla."""
    groups = groups_of(list(items), "en")
    if tested := [lg for lg, (split, _) in items.items() if split == "test" and lg != "en"]:
        groups["test"] = tested
    sentences = {lg: [(split, e.id) for e in examples] for lg, (split, examples) in items.items()}
    sampled = bootstrap(runs, sentences, groups)
    methods: dict[str, Any] = {}
    for name in runs:
        rows = gaps(sampled, name, "vanilla")
        methods[name] = {
            column: {"seeds": sampled.scores[name][column], "against_vanilla": row}
            for column, row in rows.items()
        }
    splits = {language: split for language, (split, _) in items.items()}
    return {"methods": methods, "groups": groups, "splits": splits}


def overridden(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Which runs were trained with which overrides, where there are any."""
    by_text: dict[str, list[str]] = {}
    for name, seeds in runs.items():
        for seed, run in enumerate(seeds):
            by_text.setdefault(" ".join(run["overrides"]), []).append(f"{name}-{seed}")
    if set(by_text) == {""}:
        return []
    if len(by_text) == 1:
        return [f"Overrides of the configs: {next(iter(by_text))}.", ""]
    rows = [f"- {text or 'as configured'}: {', '.join(who)}" for text, who in by_text.items()]
    return ["Overrides of the configs, METHOD-SEED:", "", *rows, ""]


def markdown(results: dict[str, Any]) -> str:
    columns = [*results["groups"], *results["splits"]]
    lines = [f"# {results['task']}: methods on `{results['encoder']}`", ""]
    lines += [f"Weights `{results['encoder_weights']}`.", ""]
    lines += overridden(results["runs"])
    lines += [
        "Accuracy × 100, mean ± deviation over seeds; `*`: differs from vanilla (paired bootstrap",
        "over sentences, p < .05; per language after Holm). Languages on test where it is open,",
        "else on dev. Budgets are the configs' own and not equal: *epochs (steps)*, stage + stage; the",
        "best epoch on English dev is kept.",
    ]
    if "distant" in results["groups"]:
        distant = results["groups"]["distant"]
        # Those of the first edition had Hindi and Urdu in it.
        aryan = ", and the Indo-Aryan ones" if {"hi", "ur"} & {*distant} else ""
        lines += [
            f"*distant*: languages of another family than Indo-European{aryan}:",
            f"{', '.join(distant)}. Another script alone (bg, el, ru) is none.",
        ]
    if "test" in results["groups"]:
        lines += [
            "*test*: the target languages that have an open test set. Dev of the others has the very",
            "sentences, in another language, that the best epoch was chosen by.",
        ]
    if "xmixup" in results["methods"]:
        lines += [
            "*xmixup* reads a machine translation beside the text wherever one is recorded, which no",
            "other row does: compare it with translate-test, in `paired.md`.",
        ]
    if UPPER in results["methods"]:
        lines += [f"*{ROWS[UPPER]}*: trained on human labels of every language; no method."]
    shown_rows = []
    for name, rows in results["methods"].items():
        cells = [budget(results["runs"][name][0]["stages"])]
        for column in columns:
            row = rows[column]
            p = row["against_vanilla"].get("p_holm", row["against_vanilla"]["p"])
            star = "*" if name != "vanilla" and p < 0.05 else ""
            cells.append(f"{shown(row['seeds'])}{star}")
        shown_rows.append([ROWS.get(name, name), *cells])
    lines += ["", *table(["method", "epochs (steps)", *columns], shown_rows)]
    return "\n".join(lines) + "\n"


def budget(stages: Sequence[dict[str, float]]) -> str:
    """``4 + 6 (176 + 264)``."""
    epochs = " + ".join(f"{stage['epochs']:.3g}" for stage in stages)
    return f"{epochs} ({' + '.join(str(stage['steps']) for stage in stages)})"


def draw(results: dict[str, Any], file: Path) -> None:
    """The difference to vanilla on the target languages, with its interval."""
    from matplotlib.figure import Figure

    group = "target" if "target" in results["groups"] else "all"
    rows = [
        (ROWS.get(name, name), rows[group]["against_vanilla"])
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
    axes.set_xlabel(f"points against vanilla, mean of {group} languages (95 % interval)")
    axes.set_title(f"{results['task']}, encoder {results['encoder']}")
    figure.savefig(file, dpi=110)


if __name__ == "__main__":
    main()
