"""What was found, as a table for a terminal and as values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from xlt_serve.evaluation.answers import Answers
from xlt_serve.evaluation.comparison import Comparison, Gap, drawn
from xlt_serve.evaluation.groups import DISTANT, groups
from xlt_serve.evaluation.scores import Interval, Score, score


@dataclass(frozen=True)
class Findings:
    """One model in one mode. ``means``: over groups of languages, each counting the same; intervals over
    rows, of which a text counts with all its translations."""

    model: str
    version: str
    mode: str
    source: str
    languages: dict[str, Score]
    means: dict[str, Interval]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def findings(
    found: Mapping[str, Answers],
    model: str,
    version: str,
    mode: str,
    source: str,
    distant: Collection[str] = DISTANT,
) -> Findings:
    scores = {language: score(mine) for language, mine in found.items()}
    draws = drawn({model: [found]}, source, distant).draws[model]
    means = {}
    for name, members in groups(list(scores), source, distant).items():
        value = float(np.mean([scores[language].accuracy.value for language in members]))
        low, high = np.percentile(draws[name], [2.5, 97.5])
        means[name] = Interval(value, float(low), float(high))
    return Findings(model, version, mode, source, scores, means)


def lines(found: Findings) -> list[str]:
    """A line for each language, with its calibration error; coverage and error only where the classifier abstained."""
    abstains = any(each.coverage < 1 for each in found.languages.values())
    head = f"{'language':10}{'rows':>7}  {'accuracy':21}{'macro-F1':21}{'majority':>8}{'cal. error':>12}"
    head += f"{'coverage':>10}{'error':>8}" if abstains else ""
    out = [f"{found.model} {found.version}, {found.mode}", head]
    for language, each in found.languages.items():
        line = f"{language:10}{each.rows:7d}  {shown(each.accuracy):21}{shown(each.macro_f1):21}"
        line += f"{each.majority:8.3f}{each.calibration_error:12.3f}"
        if abstains:
            error = "–" if each.error is None else f"{each.error:.3f}"
            line += f"{each.coverage:10.3f}{error:>8}"
        out.append(line)
    out += [f"{name:10}{'':7}  {shown(mean)}" for name, mean in found.means.items()]
    out += notes(found)
    return out


def short_lines(found: Findings, name: str) -> list[str]:
    """Of one model of several: means over languages, each counting the same, then its notes. ``error``:
    over the languages in which it answered anything."""
    scores = list(found.languages.values())
    figures = {
        "accuracy": found.means["all"].value,
        "macro-F1": fmean(each.macro_f1.value for each in scores),
        "cal. error": fmean(each.calibration_error for each in scores),
    }
    if any(each.coverage < 1 for each in scores):
        figures["coverage"] = fmean(each.coverage for each in scores)
        if errors := [each.error for each in scores if each.error is not None]:
            figures["error"] = fmean(errors)
    told = ", ".join(f"{what} {value:.3f}" for what, value in figures.items())
    model = f"{found.model} {found.version}".strip()
    return [f"{name} ({model}): {told}", *(f"  {note}" for note in notes(found))]


def confusion_lines(found: Findings) -> list[str]:
    """How often each true label was taken for each, over all languages. Labels head their columns by
    number: names may be long."""
    labels = list(dict.fromkeys(n for each in found.languages.values() for n in each.labels))
    counts: Counter[tuple[str, str]] = Counter()
    for each in found.languages.values():
        for true, taken in zip(each.labels, each.confusion, strict=True):
            counts.update({(true, given): n for given, n in zip(each.labels, taken, strict=True)})
    heads = [f"{number}" for number in range(1, len(labels) + 1)]
    cells = [[f"{counts[true, given]}" for given in labels] for true in labels]
    wide = max(len(text) for row in [heads, *cells] for text in row) + 2
    names = [f"{number} {label}" for number, label in zip(heads, labels, strict=True)]
    side = max(len("true label"), *map(len, names))
    out = ["taken for", f"{'true label':{side}}" + "".join(f"{head:>{wide}}" for head in heads)]
    for name, row in zip(names, cells, strict=True):
        out.append(f"{name:{side}}" + "".join(f"{cell:>{wide}}" for cell in row))
    return out


def notes(found: Findings) -> list[str]:
    """What a reader would else take for granted."""
    out = []
    failed = {lg: each.failed for lg, each in found.languages.items() if each.failed}
    if failed:
        told = ", ".join(f"{language} {count}" for language, count in failed.items())
        out.append(f"rows that failed, counted as wrong: {told}")
    if any(each.coverage < 1 for each in found.languages.values()):
        out.append(
            "accuracy and macro-F1 are of the likeliest label of every row; coverage is the share of rows "
            "that it answered, error how many of those answers are wrong"
        )
    strange = sorted(
        {label for each in found.languages.values() for label in each.labels[each.known :]}
    )
    if strange:
        out.append(f"labels that the model does not have, always wrong: {', '.join(strange)}")
    if few := [lg for lg, each in found.languages.items() if each.rows < 100]:
        out.append(f"fewer than 100 rows: {', '.join(few)}; mind the intervals")
    return out


def label_lines(found: Findings) -> list[str]:
    """Precision and recall of each label, over all languages."""
    sums: dict[str, list[float]] = {}
    for each in found.languages.values():
        for number, label in enumerate(each.labels):
            row = sums.setdefault(label, [0.0, 0.0, 0.0])
            row[0] += each.confusion[number][number]
            row[1] += sum(taken[number] for taken in each.confusion)
            row[2] += each.by_label[label].support
    width = max((len(label) for label in sums), default=5)
    out = [f"{'label':{width}}  precision  recall  rows"]
    for label, (hits, given, true) in sums.items():
        precision = hits / given if given else 0.0
        recall = hits / true if true else 0.0
        out.append(f"{label:{width}}  {precision:9.3f}  {recall:6.3f}  {true:4.0f}")
    return out


def comparison_lines(found: Sequence[Comparison]) -> list[str]:
    out = []
    for each in found:
        one, other = (f"{n} run{'s' if n > 1 else ''}" for n in each.runs)
        out.append(f"{each.second} ({other}) less {each.first} ({one}), points of accuracy")
        out.append(f"{'':10}{each.first[:10]:>10}{each.second[:10]:>10}  difference")
        for column, gap in each.gaps.items():
            first, second = each.scores[column]
            out.append(f"{column:10}{100 * first:10.1f}{100 * second:10.1f}  {_gap(gap)}")
        if max(each.runs) > 1 and all(gap.p is None for gap in each.gaps.values()):
            out.append("no verdict: that takes five runs of each")
    return out


def shown(value: Interval) -> str:
    return f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _gap(gap: Gap) -> str:
    said = f"{100 * gap.mean:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    if gap.p is None:
        return said
    p = f"p {gap.p:.4f}" if gap.p_holm is None else f"p {gap.p:.4f}, Holm {gap.p_holm:.4f}"
    return f"{said}  {p}"
