"""``xlt inspect``: verify a bundle and say what is in it."""

from __future__ import annotations

import argparse
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Manifest
from xlt_serve.cli.parser import command
from xlt_serve.signing import key_files, signatures


def add(commands: Any) -> None:
    sub = command(commands, "inspect", run, "verify a bundle and say what is in it")
    sub.add_argument("bundle", nargs="?", default=None, metavar="BUNDLE", help="default: topics")
    sub.add_argument("--json", action="store_true", help="the whole manifest")


def run(options: argparse.Namespace) -> None:
    bundle = bundles.load(options.bundle)
    manifest = bundle.manifest
    if options.json:
        print((bundle.path / bundles.MANIFEST).read_text(encoding="utf-8"), end="")
        return
    size = sum(bundle.file(name).stat().st_size for name in manifest.files)
    graphs = ", ".join(f"{name} ({graph.precision})" for name, graph in manifest.graphs.items())
    stages = manifest.method.get("stages", [])
    methods = ", then ".join("+".join(m["name"] for m in s["methods"]) or "vanilla" for s in stages)
    lines = {
        "bundle": f"{manifest.name} {manifest.version}, format {manifest.format}",
        "folder": f"{bundle.path} ({size / 1e6:.1f} MB, every hash verified)",
        "task": f"{manifest.task}, {'pairs of texts' if manifest.pair else 'single texts'}",
        "labels": ", ".join(manifest.labels),
        "trained on": f"{manifest.source_language} ({methods or 'unknown method'})",
        "graphs": graphs,
        "max length": f"{manifest.max_length} tokens",
        "temperature": f"{manifest.temperature('plain'):.3f}",
    }
    if (bundle.path / signatures.SIGNATURE).exists():
        checked = "checked" if key_files.required() else "not checked"
        ids = ", ".join(one.key for one in signatures.read(bundle.path))
        lines["signed by"] = f"{ids} ({checked})"
    if manifest.noise:
        lines["noise"] = ", ".join(f"{key} {value}" for key, value in manifest.noise.items())
    if manifest.synonyms:
        lines["synonyms"] = ", ".join(manifest.synonyms)
    if manifest.notes:
        lines["notes"] = manifest.notes
    lines |= quality(manifest)
    for key, value in lines.items():
        print(f"{key:12} {value}")


def quality(manifest: Manifest) -> dict[str, str]:
    """How good it is where somebody looked, what it leaves unanswered, and where nobody looked."""
    out: dict[str, str] = {}
    for split, scores in manifest.scores.items():
        out[split] = "  ".join(f"{lg} {row['accuracy']:.2f}" for lg, row in scores.items())
        if some := {
            lg: row for lg, row in scores.items() if row.get("there", 0) > row.get("count", 0)
        }:
            rows = "  ".join(
                f"{lg} {row['count']:,} of {row['there']:,}" for lg, row in some.items()
            )
            out[f"{split} rows"] = f"{rows} (drawn, of each label its share)"
    judged = {language for scores in manifest.scores.values() for language in scores}
    if judged == {manifest.source_language} or not judged:
        told = f"judged in {manifest.source_language} alone" if judged else "not judged"
        out["languages"] = f"{told}: xlt eval says how good it is in others"
    if reason := manifest.checks.get("not_gated"):
        out["not gated"] = str(reason)
    plain = manifest.calibration.get("plain", {})
    if (threshold := plain.get("abstain_below")) is not None:
        target = f", for {plain['target_error']:.0%} errors" if "target_error" in plain else ""
        out["abstains"] = f"below {threshold:.3f}{target} in {manifest.source_language}"
        for split, scores in manifest.scores.items():
            out[f"answers {split}"] = "  ".join(
                f"{lg} {row['answered']['coverage']:.0%} ({row['answered']['error']:.0%} wrong)"
                for lg, row in scores.items()
                if "answered" in row
            )
    if trimmed := manifest.checks.get("trimmed", {}).get("languages"):
        out["trimmed"] = f"to the scripts of {', '.join(trimmed)}: it can't read others"
    return out
