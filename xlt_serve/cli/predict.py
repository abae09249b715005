"""``xlt predict``: lines of text in, lines of JSON out."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlt_serve import modes
from xlt_serve.cli import options as common
from xlt_serve.cli import remote
from xlt_serve.cli.parser import command
from xlt_serve.errors import DataError
from xlt_serve.types import Prediction

CHUNK = 512
"""Lines that are read before they are answered."""


def add(commands: Any) -> None:
    sub = command(
        commands,
        "predict",
        run,
        "classify lines of text, JSON lines out",
        "example:\n  echo 'Das Spiel endete unentschieden.' | xlt predict\n\n"
        "One text a line; a tab separates the texts of a pair when the task takes pairs.",
    )
    sub.add_argument("file", nargs="?", default="-", metavar="FILE", help="default: standard input")
    sub.add_argument("--bundle", default=None, help="shipped name or folder (default: topics)")
    sub.add_argument(
        "--url", default=None, help="ask this service instead (its key in XLT_API_KEY)"
    )
    common.add_reading(sub)
    sub.add_argument("--threads", type=int, default=0, help="default: all cores")
    common.add_provider(sub)
    common.add_mode(sub)
    group = sub.add_argument_group("smoothed prediction")
    _mode(group, "--smooth", "smoothed", "vote under noise, with a certificate")
    common.add_smoothing(group)
    group = sub.add_argument_group("prediction with translations")
    _mode(group, "--paired", "paired", "a text and its translation together")
    _mode(group, "--translate", "translate", "the translation alone")
    common.add_translators(group)
    group.add_argument(
        "--require-translation", action="store_true", help="an error instead of the plain answer"
    )


def _mode(group: Any, flag: str, mode: str, about: str) -> None:
    group.add_argument(
        flag, dest="mode", action="store_const", const=mode, help=f"--mode {mode}: {about}"
    )


def run(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    settings = common.settings_of(options)
    bad: list[int] = []
    # A bar only where someone watches it, and only once it has taken two seconds.
    with tqdm(
        unit=" texts", delay=2, disable=not sys.stderr.isatty() or sys.stdout.isatty()
    ) as progress:
        for predictions in answers(options, settings, bad):
            for prediction in predictions:
                print(json.dumps(prediction, ensure_ascii=False))
            sys.stdout.flush()
            progress.update(len(predictions))
    if bad:
        name = "standard input" if options.file == "-" else options.file
        lines = ", ".join(map(str, bad[:5])) + ("…" if len(bad) > 5 else "")
        raise DataError(
            f"{name} line {lines}",
            f"{len(bad)} of its lines {'is' if len(bad) == 1 else 'are'} not valid UTF-8",
            "save it as UTF-8; the other lines were answered",
        )


def answers(
    options: argparse.Namespace, settings: dict[str, Any], bad: list[int]
) -> Iterator[list[dict[str, Any]]]:
    """Predictions chunk by chunk, as JSON objects, of a service or of a bundle loaded here."""
    if options.url:
        predict, pair = remote.predictor(options.url, settings, options.bundle)
        yield from map(predict, chunks(options.file, pair, bad))
        return
    from xlt_serve.classifier import load
    from xlt_serve.text import synonyms

    classifier = load(
        options.bundle,
        threads=options.threads,
        provider=options.provider,
        translators=options.translators,
        synonyms=synonyms.files(options.tables),
    )
    read = chunks(options.file, classifier.bundle.manifest.pair, bad)
    for predictions in classifier.predict_batches(read, modes.settings(**settings)):
        yield [named(prediction) for prediction in predictions]


def named(prediction: Prediction) -> dict[str, Any]:
    return prediction.to_dict() | {"bundle": prediction.bundle, "version": prediction.version}


def chunks(file: str, pair: bool, bad: list[int]) -> Iterator[list[object]]:
    items = (item_of(line, pair) for line in lines(file, bad))
    while chunk := list(itertools.islice(items, CHUNK)):
        yield chunk


def lines(file: str, bad: list[int]) -> Iterator[str | bytes]:
    """Lines of a file, or of standard input, without their ends.

    A line that is not UTF-8 comes as bytes, for its own error, and its number goes into ``bad``.
    """
    with contextlib.ExitStack() as stack:
        try:
            handle = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
        except FileNotFoundError:
            raise DataError(
                file, "is not there", "give a file of texts, or - for standard input"
            ) from None
        except IsADirectoryError:
            raise DataError(file, "is a folder", "give a file of texts") from None
        for number, line in enumerate(handle, 1):
            line = line.rstrip(b"\r\n")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                bad.append(number)
                yield line


def item_of(line: str | bytes, pair: bool) -> object:
    if not pair or isinstance(line, bytes):
        return line
    sides = line.split("\t")
    return tuple(sides) if len(sides) == 2 else line
