"""``xlt inspect``: verify a bundle and say what is in it."""

from __future__ import annotations

import argparse
from typing import Any

from xlt_serve import bundle as bundles
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
    for key, value in lines.items():
        print(f"{key:12} {value}")
    for split, scores in manifest.scores.items():
        shown = "  ".join(f"{language} {row['accuracy']:.2f}" for language, row in scores.items())
        print(f"{split:12} {shown}")
