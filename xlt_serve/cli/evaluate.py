"""``xlt eval``: score a checkpoint or bundle, language by language."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.cli.parser import command, training_modules, words


def add(commands: Any) -> None:
    sub = command(commands, "eval", run, "score a checkpoint or bundle, language by language")
    sub.add_argument("model", type=Path, metavar="CHECKPOINT_OR_BUNDLE")
    sub.add_argument("--task", required=True)
    sub.add_argument(
        "--data", required=True, metavar="DIR", help='folder of the task\'s files, or "hub"'
    )
    sub.add_argument("--split", default="dev", help="default: dev")
    sub.add_argument(
        "--languages",
        type=words,
        default=[],
        metavar="en,de",
        help="default: all that the data has",
    )
    sub.add_argument("--json", action="store_true", help="JSON instead of a table")


def run(options: argparse.Namespace) -> None:
    evaluate, model, data = training_modules("loop.evaluate", "loop.model", "data")
    place = options.model
    if (place / model.DESCRIPTION).is_file():
        network, description = model.load(place)
        predict, source = evaluate.torch_predictor(network), description.source_language
        pair, labels = description.pair, description.labels
    else:
        bundle = bundles.load(place)
        predict, source = evaluate.bundle_predictor(bundle.path), bundle.manifest.source_language
        pair, labels = bundle.manifest.pair, list(bundle.manifest.labels)
    examples = data.opened(data.TaskConfig(options.task, options.data))
    evaluate.check_task(examples, options.split, pair, labels)
    scores = evaluate.by_language(
        predict, examples, options.split, options.languages, sys.stderr.isatty()
    )
    if options.json:
        print(json.dumps({language: vars(score) for language, score in scores.items()}))
    else:
        print(evaluate.table(scores, source))
