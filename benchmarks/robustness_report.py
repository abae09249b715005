"""The report of ``benchmarks.robustness``: a page of Markdown and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xlt_serve.evaluation.bootstrap import Difference, difference, resample

JUDGES = 1000
"""Fresh draws of an attacked text. Predict on them decides whether its certificate is broken."""
RADIUS = 0.5
"""In σ: of the certificate that is requested as a client would."""
FACTORS = (1, 4, 16)
"""How far an attack may go, in certified radii: only the first is a promise."""
MOST_MISSES = {"0.001": 31, "0.05": 1072}  # of 20,000
RADII = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)  # in σ


def page(results: dict[str, Any]) -> str:
    parts = [
        f"# Smoothing on {results['task']} (`{results['encoder']}`, {results['precision']}, "
        f"α = {results['alpha']})",
        goals(results),
        choice(results["choice"]),
        accuracy(results),
        certificates(results),
        inputs(results),
        attacked(results),
        synonyms(results["synonyms"]),
        simulated(results["misses"]),
        plain_after_noise(results["plain_accuracy"]),
        draws_to_a_certificate(results["to_certificate"]),
        ends_of_attacks(results["pgd"]),
    ]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(_shown(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _shown(cell: object) -> str:
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):g}"


def goals(results: dict[str, Any]) -> str:
    draws = {lg: statistics.median(row["draws"]) for lg, row in results["smoothed/noise"].items()}
    every = statistics.median(
        [n for row in results["smoothed/noise"].values() for n in row["draws"]]
    )
    slowest = max(row["ratio"] for row in results["time"].values())
    noise, mixed = under_noise(results, "1"), switched(results)
    broken = [row["fell"]["1"] for rows in results["pgd"].values() for row in rows["attacks"]]
    words = [row[d] for row in results["synonyms"].values() for d in ("groups", "neighbours")]
    fallen = sum(row["broken"] for row in words)
    tried = len(broken) + sum(row["attacked"] for row in words)
    worst = max(draws, key=lambda language: draws[language])
    most = {alpha: max(results["misses"][alpha].values()) for alpha in MOST_MISSES}
    rows: list[tuple[str, str, object]] = [
        ("σ within two points of plain found on English dev", "yes", results["choice"]["found"]),
        ("smoothed − better plain at this σ, mean of all languages", "≥ -0.02", lost(results)),
        ("median draws to a label, all languages", "≤ 16", f"{every:g}"),
        (f"the same, worst language ({worst})", "≤ 16", f"{draws[worst]:g}"),
        ("time at 100 draws to the bare session", "≤ 1.15", slowest),
        ("smoothed − plain vanilla, input under noise of σ", "> 0", _interval(noise)),
        ("smoothed − plain vanilla, code-switched input", "> 0", _interval(mixed)),
        (
            f"broken certificates in {tried} attacks",
            f"≤ {results['alpha']} of them",
            sum(broken) + fallen,
        ),
        *(
            (f"most misses in {results['misses']['trials']} at α = {alpha}", limit, most[alpha])
            for alpha, limit in MOST_MISSES.items()
        ),
    ]
    return "## Goals\n\n" + table(["", "goal", "measured"], rows)


def lost(results: dict[str, Any]) -> float:
    """What smoothing costs where there is no noise; an abstention is a mistake."""
    plain = [
        np.mean([np.mean(right) for right in results[f"plain/{kind}"].values()])
        for kind in ("vanilla", "noise")
    ]
    smoothed = np.mean([np.mean(row["right"]) for row in results["smoothed/noise"].values()])
    return float(smoothed - max(plain))


def choice(row: dict[str, Any]) -> str:
    rows = [[f"{t['sigma']:g}", t["plain"], t["smoothed"], t["fits"]] for t in row["tried"]]
    return (
        f"## σ = {row['sigma']}, chosen on English dev\n\nPlain vanilla {row['vanilla']:.3f}; "
        "an abstention counts as a mistake.\n\n"
        + table(["σ", "plain", "smoothed", "within 2 points"], rows)
    )


def accuracy(results: dict[str, Any]) -> str:
    rows = []
    for language, split in results["splits"].items():
        kinds = [
            float(np.mean(part))
            for kind in ("vanilla", "noise")
            for part in (
                results[f"plain/{kind}"][language],
                results[f"smoothed/{kind}"][language]["right"],
            )
        ]
        voted = results["smoothed/noise"][language]
        rows.append(
            [
                f"{language} ({split})",
                *kinds,
                float(np.mean(voted["decided"])),
                _median(voted["draws"]),
            ]
        )
    columns = list(zip(*(row[1:-1] for row in rows), strict=True))
    every = _median([n for row in results["smoothed/noise"].values() for n in row["draws"]])
    rows.append(["all", *(float(np.mean(column)) for column in columns), every])
    head = ["", "vanilla plain", "vanilla smoothed", "noise plain", "noise smoothed"]
    return "## Accuracy and draws\n\n" + table([*head, "decided", "median draws"], rows)


def certificates(results: dict[str, Any]) -> str:
    sigma, near = results["choice"]["sigma"], results["synonym_distance"]
    rows = []
    for kind in ("vanilla", "noise"):
        found = results[f"certified/{kind}"].values()
        shares = [float(np.mean([curve(row, [r * sigma])[0] for row in found])) for r in RADII]
        radius = statistics.median([r for row in found for r in row["radius"]])
        rows.append([kind, *shares, radius, f"{radius / near['median']:.4f}"])
    agreed = [a for k in ("vanilla", "noise") for r in results[f"certified/{k}"].values()
              for a in r["agreed"]]  # fmt: skip
    head = ["certified accuracy at", *(f"{r:g} σ" for r in RADII), "median radius", "in synonyms"]
    return (
        "## Certificates\n\nL2 on the embeddings, a fixed number of draws; means over languages. "
        f"*In synonyms*: divided by {near['median']:.3f}, the median distance from a word to its "
        f"nearest synonym at the same place ({near['words']} English words). Early stopping has not "
        f"another label than the fixed procedure on {sum(agreed)} of {len(agreed)} texts.\n\n"
        + table(head, rows)
        + "\n\n"
        + table(
            ["100 draws", "time to the bare session", "noise beside it"],
            [[name, r["ratio"], r["noise_to_session"]] for name, r in results["time"].items()],
        )
    )


def inputs(results: dict[str, Any]) -> str:
    rows = []
    for name, found in (
        ("noise of σ on the embeddings", under_noise(results, "1")),
        ("noise of 2σ", under_noise(results, "2")),
        ("code-switched, p = ½", switched(results)),
    ):
        rows.append([name, found[0], found[1], _interval(found)])
    head = ["input", "vanilla, plain", "noise-trained, smoothed", "difference (95 %)"]
    return "## Disturbed inputs\n\n" + table(head, rows)


def attacked(results: dict[str, Any]) -> str:
    rows = [row for part in results["pgd"].values() for row in part["attacks"]]
    fell = []
    for factor in ("1", "4", "16"):
        there = [row["fell"][factor] for row in rows if factor in row["fell"]]
        fell.append([f"{factor} × radius", sum(there), len(there)])
    return "## Projected gradients on the embeddings\n\n" + table(["within", "fell", "of"], fell)


def synonyms(results: dict[str, Any]) -> str:
    rows = []
    for name, found in results.items():
        for draws in ("groups", "neighbours"):
            row = found[draws]
            rows.append(
                [
                    f"{name}, {draws}",
                    float(np.mean(found["plain_right"])),
                    float(np.mean(row["right"])),
                    _median(row["draws"]),
                    float(np.mean([n > 0 for n in row["certified"]])),
                    f"{row['plain_fell']} of {row['attacked']}",
                    f"{row['broken']} of {row['attacked']}",
                ]
            )
    head = ["English", "plain", "smoothed", "median draws", "certificate of ≥ 1 word"]
    return "## Synonyms\n\nThe search changes any words inside the certificate.\n\n" + table(
        [*head, "plain labels that fell", "broken certificates"], rows
    )


def simulated(results: dict[str, Any]) -> str:
    rows = [[name, *(results[a][name] for a in MOST_MISSES)] for name in results["0.001"]]
    limit = ["at most, of 20000", *MOST_MISSES.values()]
    head = ["misses", *(f"α = {alpha}" for alpha in MOST_MISSES)]
    return f"## Simulated misses in {results['trials']} trials\n\n" + table(head, [*rows, limit])


def plain_after_noise(plain: dict[str, Any]) -> str:
    rows = [[name, *row.values()] for name, row in plain["rows"].items()]
    verdict = "yes" if plain["within_one_point"] else "no"
    return (
        "## Plain prediction after training under noise\n\nσ was chosen on en dev alone. "
        f"Within one point of vanilla in the mean: {verdict}.\n\n"
        + table(["", "vanilla", "noise-trained", "difference"], rows)
    )


def draws_to_a_certificate(found: dict[str, Any]) -> str:
    radius, limit = next((row["radius"], row["limit"]) for row in found.values())
    every = _median([n for row in found.values() for n in row["draws"]])
    proved = [bool(c) for row in found.values() for c in row["certified"]]
    cells: list[list[object]] = [
        [language, _median(row["draws"]), float(np.mean(row["certified"]))]
        for language, row in found.items()
    ]
    cells.append(["all", every, float(np.mean(proved))])
    return (
        f"## Draws to a certificate\n\nOf radius {radius:g} ({RADIUS:g} σ), noise-trained, stopped as "
        f"it is served: a median of {every} votes, where a fixed number takes {limit}. *Draws* are "
        "the votes that an answer rests on; what its last batch computed beyond them is not counted."
        "\n\n" + table(["", "median draws", "certified"], cells)
    )


def ends_of_attacks(pgd: dict[str, Any]) -> str:
    tried = [row for part in pgd.values() for row in part["attacks"]]
    uncertified = sum(part["uncertified"] for part in pgd.values())
    ends = [
        [
            f"{f} × radius",
            sum(str(f) in row["fell"] for row in tried),
            *(sum(row[end].get(str(f), False) for row in tried) for end in ("fell", "abstained")),
        ]
        for f in FACTORS
    ]
    return (
        f"## How attacks on certified labels ended\n\n{len(tried)} certificates, of a fixed number of "
        f"draws and as served, each judged by Predict on {JUDGES} fresh draws; {uncertified} texts "
        "beside them had none to attack. Those of uniform noise (L1) are not attacked here.\n\n"
        + table(["within", "attacked", "another label", "abstained"], ends)
    )


# Figures


def curve(row: Mapping[str, Any], radii: Sequence[float]) -> list[float]:
    """Share of texts whose label is right and certified beyond each radius (0: right, any)."""
    radius, right = np.array(row["radius"]), np.array(row["right"])
    return [float(np.mean(right & (radius > r))) for r in radii]


Compared = tuple[float, float, Difference]


def under_noise(results: dict[str, Any], factor: str) -> Compared:
    rows = {lg: row[factor] for lg, row in results["embedding_noise"].items()}
    return compared(rows, results["splits"])


def switched(results: dict[str, Any]) -> Compared:
    rows = results["code_switched"]
    return compared(rows, dict.fromkeys(rows, "en"))


def compared(rows: dict[str, dict[str, list[bool]]], splits: dict[str, str]) -> Compared:
    """Means over languages of both, and a paired bootstrap over sentences, which languages share."""
    keys = sorted({(splits[lg], i) for lg, row in rows.items() for i in range(len(row["vanilla"]))})
    place = {key: number for number, key in enumerate(keys)}
    weights = resample([str(i) for _, i in keys], [s for s, _ in keys], times=2000, seed=0)
    means, draws = [], []
    for kind in ("vanilla", "smoothed"):
        parts, resampled = [], []
        for language, row in rows.items():
            values = np.array(row[kind], dtype=float)
            chosen = weights[:, [place[splits[language], i] for i in range(len(values))]]
            parts.append(values.mean())
            resampled.append(chosen @ values / np.maximum(1, chosen.sum(axis=1)))
        means.append(float(np.mean(parts)))
        draws.append(np.mean(resampled, axis=0))
    return means[0], means[1], difference(draws[1], draws[0], means[1] - means[0])


def _interval(found: Compared) -> str:
    gap = found[2]
    return f"{gap.mean:+.3f} ({gap.low:+.3f} … {gap.high:+.3f})"


def draw(results: dict[str, Any], file: Path) -> None:
    """Certified accuracy against radius, a panel for each language."""
    from matplotlib.figure import Figure

    names = list(results["splits"])
    columns = min(6, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(2.3 * columns, 1.9 * lines + 0.6), layout="constrained")
    sigma, near = results["choice"]["sigma"], results["synonym_distance"]["median"]
    most = max(r for row in results["certified/noise"].values() for r in row["radius"])
    radii = np.linspace(0, max(most, sigma) * 1.05, 200).tolist()
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, language in zip(panels, names, strict=False):
        for kind, colour in (("vanilla", "tab:gray"), ("noise", "tab:blue")):
            shares = curve(results[f"certified/{kind}"][language], radii)
            panel.step(radii, shares, color=colour, label=kind)
        panel.set_title(language, fontsize=9)
        panel.set_ylim(0, 1)
    for panel in panels[len(names) :]:
        panel.axis("off")
    panels[0].legend(fontsize=7)
    figure.suptitle(f"Certified accuracy under gaussian noise, σ = {sigma:g}", fontsize=10)
    figure.supxlabel(f"L2 radius on the embeddings (a synonym is {near:.2f} away)", fontsize=9)
    figure.savefig(file, dpi=110)
