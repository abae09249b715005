"""The report of ``benchmarks.paired``: a page of Markdown and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.markdown import table
from benchmarks.paired_damage import DAMAGES
from xlt_serve.evaluation.bootstrap import shown

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


def markdown(results: dict[str, Any]) -> str:
    parts = [heading(results), accuracies(results), differences(results), damages(results)]
    if "before_training" in results:
        parts.append(entropies(results["before_training"]))
    if "cost" in results:
        parts.append(cost(results["cost"]))
    return "\n".join(line for part in parts for line in part) + "\n"


def heading(results: dict[str, Any]) -> list[str]:
    lines = [f"# Prediction with translations, SIB-200 on `{results['encoder']}`", ""]
    if results["overrides"]:
        lines += [f"Overrides: {' '.join(results['overrides'])}.", ""]
    return [
        *lines,
        f"Accuracy × 100, mean of {results['seeds']} seeds ± deviation over them;",
        "sentences with a recorded translation, the same in every column.",
        "",
    ]


def accuracies(results: dict[str, Any]) -> list[str]:
    scores = results["scores"]
    columns = [column for column in COLUMNS if column in scores]
    rows = []
    for language in [*results["languages"], "mean"]:
        about = results["languages"].get(language)
        head = f"{language} ({about['split']}, {about['items']})" if about else "**mean**"
        rows.append([head, *(shown(scores[column][language]) for column in columns)])
    return table(["language (split, sentences)", *columns], rows)


def differences(results: dict[str, Any]) -> list[str]:
    lines = [
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
    return lines


def damages(results: dict[str, Any]) -> list[str]:
    def cell(row: dict[str, float]) -> str:
        mixed = f", λ {row['ratio']:.3f} ({row['separates']:.2f})" if "ratio" in row else ""
        return f"{100 * row['accuracy']:.1f}{mixed}"

    rows = [
        [name, *(cell(found[damage]) for damage in DAMAGES)]
        for name, found in results["damage"].items()
    ]
    return [
        "",
        "## Damaged translations",
        "",
        "Mean over languages and seeds: accuracy × 100, and for X-Mixup λ (and the chance that",
        "an intact translation's λ is above a damaged one's; 0.50: λ does not see it).",
        "",
        *table(["model", *DAMAGES], rows),
    ]


def entropies(layers: dict[str, dict[str, float]]) -> list[str]:
    rows = [[layer, *(f"{row[d]:.2f}" for d in DAMAGES[1:])] for layer, row in layers.items()]
    return [
        "",
        "The entropy that λ hangs on, in the encoder before any training: the chance that",
        "a damaged translation's is above an intact one's.",
        "",
        *table(["layer", *DAMAGES[1:]], rows),
    ]


def cost(found: dict[str, Any]) -> list[str]:
    graphs = [
        [shape, *(f"{row[key]:.2f}" for key in ("plain_ms", "paired_ms", "ratio"))]
        for shape, row in found["graphs"].items()
    ]
    parts = ("translator", "session", "rest")
    requests = [
        [name, f"skipped: {row['skipped']}", "", "", ""]
        if "skipped" in row
        else [
            f"{name} ({row['engine']})",
            f"{row['total_ms_per_text']:.2f}",
            *(f"{100 * row[part]:.1f} %" for part in parts),
        ]
        for name, row in found["overhead"].items()
    ]
    return [
        "",
        "## Cost",
        "",
        *table(["rows × tokens", "plain ms", "paired ms", "ratio"], graphs),
        "",
        *table(["request", "ms a text", *parts], requests),
    ]


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
