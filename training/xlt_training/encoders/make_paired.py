"""Make the shipped paired bundle again: ``python -m xlt_training.encoders.make_paired --data ../shared/data``.

X-Mixup on the small encoder: SIB-200's 701 English sentences, their recorded translations into 16
languages and back. Of the seeds, the one best on English dev ships; int8, with the graphs plain and
paired, in ``xlt_serve/models/topics-paired``. ``--damage`` spoils a share of the translations in
training; that half a point of accuracy buys next to nothing (``benchmarks/results/paired.md``).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_training.encoders import make
from xlt_training.exporting import checkpoint as export
from xlt_training.loop import config, trainer

NAME = "topics-paired"
LARGEST = 25_000_000


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--encoder", default="small")
    parser.add_argument("--seeds", type=int, default=3, help="classifiers to choose from, on dev")
    parser.add_argument("--damage", type=float, default=0.0, help="share of spoilt translations")
    parser.add_argument("--work", type=Path, default=Path("build/encoder"))
    parser.add_argument("--out", type=Path, default=bundles.MODELS / NAME)
    parser.add_argument("--agreement", type=float, default=export.AGREEMENT)
    parser.add_argument("--languages", nargs="*", default=[], help="to judge on; default: all")
    parser.add_argument("--override", nargs="*", default=[], help="config keys")
    options = parser.parse_args(arguments)
    best = trained(options)
    made = exported(best, options)
    size = sum(file.stat().st_size for file in made.path.iterdir())
    if size > LARGEST:
        raise SystemExit(f"{made.path}: {size / 1e6:.1f} MB, more than ships")
    print(f"written: {made.path} ({size / 1e6:.1f} MB, version {made.manifest.version})")
    if made.path.parent == bundles.MODELS:
        (make.ENCODER / make.CARD).write_text(make.card(), encoding="utf-8")  # has its hashes


def trained(options: argparse.Namespace) -> Path:
    """The checkpoint of the best seed on the source language's dev data."""
    scores: dict[Path, float] = {}
    for seed in range(options.seeds):
        method = f"method.xmixup.damage={options.damage}"
        overrides = [f"seed={seed}", f"task.data={options.data}", f"encoder={options.encoder}"]
        made = config.named("sib200", "xmixup", [*overrides, method, *options.override])
        folder = options.work / f"{NAME}-{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # it may stem from an older encoder
        scores[folder] = trainer.train(made, folder)["dev_score"]
        print(f"seed {seed}: {scores[folder]:.4f} on English dev", flush=True)
    return max(scores, key=lambda folder: scores[folder])


def exported(checkpoint: Path, options: argparse.Namespace) -> Bundle:
    order = export.Order(
        name=NAME,
        precision="int8",
        graphs=["plain", "paired"],
        notes="SIB-200 topics, X-Mixup over recorded translations, on the project's own small encoder",
        exclude=make.SENSITIVE,
        agreement=options.agreement,
        languages=options.languages,
    )
    return export.export(checkpoint, options.out, order)


if __name__ == "__main__":
    main()
