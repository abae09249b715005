"""``xlt train``: train a classifier by names, or as a config says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from xlt_serve.cli.parser import command, training_modules, words
from xlt_serve.errors import UsageError


def add(commands: Any) -> None:
    sub = command(
        commands,
        "train",
        run,
        "train a classifier by names, or as a config says",
        "examples:\n"
        "  xlt train --task sib200 --method synonyms,ear seed=1 train.epochs=5 --out runs/1\n"
        "  xlt train --task xnli --method ear --preset paper --out runs/2\n"
        "  xlt train my.toml seed=1 --out runs/3\n\n"
        "The same command goes on with a run that was stopped. Tasks: sib200, xsid, sentiment,\n"
        'xnli, pawsx; in a config also nli, and "files" for CSV, TSV, JSONL or Parquet of your own.',
    )
    sub.add_argument(
        "given",
        nargs="*",
        metavar="CONFIG KEY=VALUE",
        help="a TOML file, unless there is a --task; keys that override it",
    )
    sub.add_argument("--task", default="", help="a task by name, instead of a config")
    sub.add_argument(
        "--method",
        type=words,
        default=None,
        metavar="A,B",
        help="with --task: methods, the outermost first; see xlt methods (default: vanilla)",
    )
    sub.add_argument(
        "--preset",
        default=None,
        metavar="NAME",
        help="with --task: small, numbers for the encoder that ships (default); paper, those of the "
        "method's paper for mBERT and XLM-R, which were not run here; or a paper: huang2021, "
        "ding2022, yang2022, ji2023, l2_ewc",
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="checkpoint folder")
    sub.set_defaults(take=take)


def take(options: argparse.Namespace, rest: list[str]) -> list[str]:
    """Overrides among the words that argparse left: it takes them only where they stand together."""
    options.given += [word for word in rest if "=" in word and not word.startswith("-")]
    return [word for word in rest if word not in options.given]


def run(options: argparse.Namespace) -> None:
    (early,) = training_modules("loop.early")
    preset, names = options.preset or "small", options.method or ["vanilla"]
    if options.task:
        early.check_named(options.task, names, options.given, preset)
    elif options.given:
        early.check(Path(options.given[0]), options.given[1:])
    config, trainer = training_modules("loop.config", "loop.trainer")
    if options.task:
        made = config.named(options.task, names, options.given, preset)
        if preset != "small" and trainer.is_first_process():
            print(f"preset {preset}: a paper's numbers, not run here", file=sys.stderr)
    elif options.method or options.preset:
        said = f"--method {','.join(options.method)}" if options.method else "--preset"
        raise UsageError(said, "needs a task", "give --task NAME")
    elif not options.given:
        raise UsageError("xlt train", "needs a config or a task", "give CONFIG, or --task NAME")
    else:
        made = config.load(Path(options.given[0]), options.given[1:])
    metrics = trainer.train(made, options.out)
    if not trainer.is_first_process():
        return
    print(f"checkpoint: {options.out}")
    print(f"dev score ({metrics['selected_by']}): {metrics['dev_score']:.4f}")
    for language, found in metrics["languages"].items():
        print(f"{language:8}  {found['accuracy']:.3f}")
