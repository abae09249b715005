"""The report as one HTML file: open it anywhere, send it to anyone."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence

from xlt_serve.evaluation.comparison import Comparison
from xlt_serve.evaluation.findings import Findings, comparison_lines, notes
from xlt_serve.evaluation.scores import Interval, Score

STYLE = """
:root{color-scheme:light dark;--ink:#111827;--soft:#6b7280;--line:#e5e7eb;--page:#fff;--bar:#2563eb}
@media(prefers-color-scheme:dark){:root{--ink:#e5e7eb;--soft:#9ca3af;--line:#374151;--page:#111827;--bar:#60a5fa}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:1100px;
margin:0 auto;padding:24px}h1{font-size:24px;margin:0}h2{font-size:18px;margin:32px 0 8px}
p.about{color:var(--soft);margin:4px 0 16px}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:3px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}td.bar{min-width:180px;padding:0 10px}
.track{position:relative;height:12px;background:var(--line)}.range{position:absolute;height:12px;
background:var(--bar);opacity:.35}.dot{position:absolute;width:2px;height:12px;background:var(--bar)}
td.cell{background:color-mix(in srgb,var(--bar) calc(var(--share)*60%),transparent)}
pre{overflow-x:auto;font-size:12px}
"""


def page(reports: Sequence[Findings], comparisons: Sequence[Comparison] = ()) -> str:
    """Self-contained: styles inside, no script, no address of anything."""
    title = "Evaluation of " + ", ".join(dict.fromkeys(found.model for found in reports))
    parts = [_section(found) for found in reports]
    if comparisons:
        told = html.escape("\n".join(comparison_lines(comparisons)))
        parts.insert(0, f"<h2>Comparison</h2><pre>{told}</pre>")
    values = json.dumps([found.to_dict() for found in reports], ensure_ascii=False)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
        + "".join(parts)
        + f"<details><summary>Values</summary><pre>{html.escape(values)}</pre></details></html>\n"
    )


def _section(found: Findings) -> str:
    told = "".join(f"<p class=about>{html.escape(note)}.</p>" for note in notes(found))
    head = f"{found.model} {found.version}, {found.mode}"
    matrices = "".join(
        f"<details><summary>{html.escape(language)}: labels</summary>{_labels(each)}</details>"
        for language, each in found.languages.items()
    )
    return (
        f"<h2>{html.escape(head)}</h2>{told}<div class=scroll>{_languages(found)}</div>{matrices}"
    )


def _languages(found: Findings) -> str:
    names = (
        "language", "rows", "accuracy", "95 %", "", "macro-F1", "majority", "coverage", "error",
        "calibration error",
    )  # fmt: skip
    rows = [
        [
            _cell(language),
            _cell(each.rows),
            *_accuracy(each.accuracy),
            _cell(f"{each.macro_f1.value:.3f}"),
            _cell(f"{each.majority:.3f}"),
            _cell(f"{each.coverage:.3f}"),
            _cell("–" if each.error is None else f"{each.error:.3f}"),
            _cell(f"{each.calibration_error:.3f}"),
        ]
        for language, each in found.languages.items()
    ]
    rows += [
        [_cell(name), _cell(""), *_accuracy(mean), *[_cell("")] * 5]
        for name, mean in found.means.items()
    ]
    return _table(names, rows)


def _accuracy(value: Interval) -> list[str]:
    left, width = 100 * value.low, 100 * (value.high - value.low)
    bar = (
        f"<td class=bar><div class=track><div class=range style='left:{left:.1f}%;width:{width:.1f}%'>"
        f"</div><div class=dot style='left:{100 * value.value:.1f}%'></div></div></td>"
    )
    return [_cell(f"{value.value:.3f}"), _cell(f"{value.low:.3f} to {value.high:.3f}"), bar]


def _labels(each: Score) -> str:
    """A row for each true label: its scores, and what it was taken for."""
    names = ("true label", "rows", "precision", "recall", "F1", *each.labels)
    rows = []
    for label, taken in zip(each.labels, each.confusion, strict=True):
        mine = each.by_label[label]
        cells = [_cell(label), _cell(mine.support)]
        cells += [_cell(f"{value:.3f}") for value in (mine.precision, mine.recall, mine.f1)]
        shares = [count / mine.support if mine.support else 0.0 for count in taken]
        cells += [
            f"<td class=cell style='--share:{share:.2f}'>{count}</td>"
            for count, share in zip(taken, shares, strict=True)
        ]
        rows.append(cells)
    return f"<div class=scroll>{_table(names, rows)}</div>"


def _cell(value: object) -> str:
    return f"<td>{html.escape(str(value))}</td>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{''.join(r)}</tr>" for r in rows) + "</table>"
