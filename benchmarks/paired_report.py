"""The report of ``benchmarks.paired``: a page of Markdown and a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.paired_damage import DAMAGES
from benchmarks.statistics import shown

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
    lines = ["| language (split, sentences) | " + " | ".join(columns) + " |"]
    lines += ["|---" * (len(columns) + 1) + "|"]
    for language in [*results["languages"], "mean"]:
        about = results["languages"].get(language)
        head = f"{language} ({about['split']}, {about['items']})" if about else "**mean**"
        cells = [shown(scores[column][language]) for column in columns]
        lines.append(f"| {head} | " + " | ".join(cells) + " |")
    return lines


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
    lines = [
        "",
        "## Damaged translations",
        "",
        "Mean over languages and seeds: accuracy × 100, and for X-Mixup λ (and the chance that",
        "an intact translation's λ is above a damaged one's; 0.50: λ does not see it).",
        "",
        "| model | " + " | ".join(DAMAGES) + " |",
        "|---" * (len(DAMAGES) + 1) + "|",
    ]
    for name, rows in results["damage"].items():
        cells = []
        for damage in DAMAGES:
            row = rows[damage]
            cell = f"{100 * row['accuracy']:.1f}"
            if "ratio" in row:
                cell += f", λ {row['ratio']:.3f} ({row['separates']:.2f})"
            cells.append(cell)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def entropies(layers: dict[str, dict[str, float]]) -> list[str]:
    lines = [
        "",
        "The entropy that λ hangs on, in the encoder before any training: the chance that",
        "a damaged translation's is above an intact one's.",
        "",
        "| layer | " + " | ".join(DAMAGES[1:]) + " |",
        "|---" * len(DAMAGES) + "|",
    ]
    for layer, row in layers.items():
        lines.append(f"| {layer} | " + " | ".join(f"{row[d]:.2f}" for d in DAMAGES[1:]) + " |")
    return lines


def cost(found: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "## Cost",
        "",
        "| rows × tokens | plain ms | paired ms | ratio |",
        "|---|---|---|---|",
    ]
    for shape, row in found["graphs"].items():
        lines.append(
            f"| {shape} | {row['plain_ms']:.2f} | {row['paired_ms']:.2f} | {row['ratio']:.2f} |"
        )
    lines += ["", "| request | ms a text | translator | session | rest |", "|---|---|---|---|---|"]
    for name, row in found["overhead"].items():
        if "skipped" in row:
            lines.append(f"| {name} | skipped: {row['skipped']} | | | |")
            continue
        shares = " | ".join(f"{100 * row[key]:.1f} %" for key in ("translator", "session", "rest"))
        lines.append(f"| {name} ({row['engine']}) | {row['total_ms_per_text']:.2f} | {shares} |")
    return lines


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
