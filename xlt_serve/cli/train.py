"""``xlt train``: train a classifier as a config says."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from xlt_serve.cli.parser import command, training_modules


def add(commands: Any) -> None:
    sub = command(
        commands,
        "train",
        run,
        "train a classifier as a config says",
        "example:\n  xlt train training/xlt_training/configs/sib200/vanilla.toml seed=1 train.epochs=5 --out runs/1\n\n"
        "The same command goes on with a run that was stopped. Tasks: sib200, xsid, sentiment,\n"
        'xnli, nli, pawsx; task.name="files" trains on CSV, TSV, JSONL or Parquet of your own.',
    )
    sub.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file")
    sub.add_argument(
        "override", nargs="*", metavar="KEY=VALUE", help="overrides a key of the config"
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="checkpoint folder")
    sub.set_defaults(take=take)


def take(options: argparse.Namespace, rest: list[str]) -> list[str]:
    """Overrides among the words that argparse left: it takes them only where they stand together."""
    options.override += [word for word in rest if "=" in word and not word.startswith("-")]
    return [word for word in rest if word not in options.override]


def run(options: argparse.Namespace) -> None:
    config, trainer = training_modules("loop.config", "loop.trainer")
    metrics = trainer.train(config.load(options.config, options.override), options.out)
    if not trainer.is_first_process():
        return
    print(f"checkpoint: {options.out}")
    print(f"dev score ({metrics['selected_by']}): {metrics['dev_score']:.4f}")
    for language, found in metrics["languages"].items():
        print(f"{language:8}  {found['accuracy']:.3f}")
