"""The model card: ``README.md`` in the bundle, from what its manifest says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xlt_serve.bundle import Manifest

NAME = "README.md"
MOST_LABELS = 20


def card(manifest: Manifest) -> str:
    judged = sorted({lg for scores in manifest.scores.values() for lg in scores})
    parts = [
        _head(judged or [manifest.source_language]),
        f"# {manifest.name}",
        _about(manifest),
        "## How good it is\n\n" + _scores(manifest),
        "## How it was made\n\n" + _made(manifest),
        "## What it is not for\n\n" + _limits(manifest, judged),
        "## Use\n\n" + _use(manifest),
    ]
    return "\n\n".join(parts) + "\n"


def _head(languages: list[str]) -> str:
    """What the hub reads."""
    listed = "\n".join(f'- "{language}"' for language in languages)
    return (
        f"---\nlibrary_name: xlt-serve\npipeline_tag: text-classification\nlanguage:\n{listed}\n---"
    )


def _about(manifest: Manifest) -> str:
    kind = "pairs of texts" if manifest.pair else "texts"
    graphs = ", ".join(f"{name} ({graph.precision})" for name, graph in manifest.graphs.items())
    lines = [
        f"Classifies {kind}, of which it reads {manifest.max_length} tokens, by these labels: "
        f"{', '.join(manifest.labels)}.",
        f"Trained on labels in {_languages(manifest)}. ONNX graphs: {graphs}.",
    ]
    return "\n".join([*lines, *([manifest.notes] if manifest.notes else [])])


def _languages(manifest: Manifest) -> str:
    """Those that it was trained on."""
    rows = _trained_on(manifest).get("rows", {})
    return ", ".join(f"`{language}`" for language in rows or [manifest.source_language])


def _trained_on(manifest: Manifest) -> Mapping[str, Any]:
    found: Mapping[str, Any] = manifest.checks.get("trained_on", {})
    return found


def _scores(manifest: Manifest) -> str:
    if not manifest.scores:
        gate = f" It is not gated: {told}." if (told := manifest.checks.get("not_gated")) else ""
        return f"Nobody has judged it: no labelled rows were there at export. `xlt eval` does it.{gate}"
    lines = []
    for split, scores in manifest.scores.items():
        lines += [f"On the {split} rows:", "", *_table(scores), ""]
    return "\n".join(lines).rstrip()


def _table(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    answered = any("answered" in row for row in scores.values())
    balanced = any("macro_f1" in row for row in scores.values())
    head = "| language | rows | accuracy |" + (" macro-F1 |" if balanced else "")
    head += " commonest label | calibration error |"
    head += " answered | of these wrong |" if answered else ""
    out = [head, "|---" * (head.count("|") - 1) + "|"]
    for language, row in scores.items():
        some = f" of {row['there']:,.0f}" if row.get("there", 0) > row["count"] else ""
        cells = [language, f"{row['count']:,.0f}{some}", f"{row['accuracy']:.3f}"]
        if balanced:
            cells.append(f"{row['macro_f1']:.3f}" if "macro_f1" in row else "")
        cells.append(f"{row['majority']:.3f}" if "majority" in row else "")
        cells.append(f"{row['ece']['value']:.3f}" if "ece" in row else "")
        if answered:
            found = row.get("answered", {})
            cells += [f"{found[name]:.1%}" if found else "" for name in ("coverage", "error")]
        out.append(f"| {' | '.join(cells)} |")
    return out


def _made(manifest: Manifest) -> str:
    stages = manifest.method.get("stages", [])
    methods = ", then ".join("+".join(m["name"] for m in s["methods"]) or "vanilla" for s in stages)
    lines = [
        f"- task: {manifest.task}",
        *_rows(_trained_on(manifest)),
        f"- encoder: {manifest.method.get('encoder', 'unknown')}",
        f"- methods: {methods or 'unknown'}",
    ]
    if kind := manifest.noise.get("kind"):
        lines.append(f"- trained under {kind} noise of {manifest.noise.get('scale')}")
    packages = ", ".join(f"{name} {version}" for name, version in manifest.packages.items())
    return "\n".join([*lines, f"- packages: {packages}"])


def _rows(learnt_from: Mapping[str, Any]) -> list[str]:
    """Which files, how many rows in which languages, how many of each label; of old bundles nothing."""
    lines = []
    if files := learnt_from.get("files"):
        named = (f"{', '.join(names)} ({split})" for split, names in files.items())
        lines.append(f"- files: {'; '.join(named)}")
    if rows := learnt_from.get("rows"):
        counts = ", ".join(f"{language} {count:,}" for language, count in rows.items())
        lines.append(f"- trained on {sum(rows.values()):,} rows: {counts}")
    if labels := learnt_from.get("labels"):
        shown = [f"{label} {count:,}" for label, count in labels.items()]
        more = f", and {len(shown) - MOST_LABELS} more" if len(shown) > MOST_LABELS else ""
        lines.append(f"- rows of each label: {', '.join(shown[:MOST_LABELS])}{more}")
    return lines


def _limits(manifest: Manifest, judged: list[str]) -> str:
    lines = [
        f"- Other languages than {', '.join(judged)}: nobody has judged it there."
        if judged
        else "- Any language, before somebody has judged it there.",
        f"- Longer texts than {manifest.max_length} tokens: what is beyond is cut, or read in windows.",
        "- Texts of another kind than those that it was trained on: its probabilities mean little there.",
    ]
    if trimmed := manifest.checks.get("trimmed", {}).get("languages"):
        lines.append(f"- Scripts that {', '.join(trimmed)} don't use: their pieces were taken out.")
    if (least := manifest.abstain_below("plain")) is not None:
        lines.append(f"- It gives no label below a probability of {least:.3f}.")
    return "\n".join(lines)


def _use(manifest: Manifest) -> str:
    item = '("a text", "another")' if manifest.pair else '"a text"'
    return (
        "```python\nfrom xlt_serve import load\n\n"
        f'load("path/to/this/folder").predict([{item}])\n```\n\n'
        f"`xlt serve --bundle {manifest.name}=FOLDER` serves it, `xlt inspect FOLDER` verifies every file."
    )
