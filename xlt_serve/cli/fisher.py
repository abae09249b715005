"""``xlt fisher``: estimate an encoder's Fisher information, for the method ewc."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from xlt_serve.cli.parser import command, training_modules, words
from xlt_serve.errors import DataError


def add(commands: Any) -> None:
    sub = command(
        commands,
        "fisher",
        run,
        "estimate an encoder's Fisher information on text, for the method ewc",
        "example:\n  xlt fisher small --languages fr --text ../shared/data/text --leave-out ../shared/data "
        "--out fisher\n\n"
        "Several languages are mixed into one estimate, named fr+en; with --each every language has its\n"
        "own, for a model trained for it.",
    )
    sub.add_argument(
        "encoder", metavar="ENCODER", help="name or folder, with its language-model head"
    )
    sub.add_argument("--languages", type=words, required=True, metavar="fr,en")
    sub.add_argument(
        "--text", type=Path, required=True, metavar="DIR", help="folder of LANGUAGE.txt"
    )
    sub.add_argument("--out", type=Path, required=True, metavar="DIR")
    sub.add_argument(
        "--leave-out",
        type=Path,
        metavar="DATA",
        help="data folder whose evaluation sentences are left out of the text",
    )
    sub.add_argument("--each", action="store_true", help="an estimate for each language")
    sub.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, …")
    sub.add_argument("--sentences", type=int, default=2000)
    sub.add_argument("--seed", type=int, default=0)


def run(options: argparse.Namespace) -> None:
    fisher, trainer = training_modules("loop.fisher", "loop.trainer")
    weights = trainer.weights_digest(options.encoder)
    languages = options.languages
    for chosen in [[language] for language in languages] if options.each else [languages]:
        texts, name = texts_of(options, chosen), "+".join(chosen)
        source = fisher.source_of(options.encoder, weights, texts, options.sentences, options.seed)
        values = fisher.compute(
            options.encoder, texts, options.sentences, seed=options.seed, device=options.device
        )
        print(f"fisher: {fisher.save(options.out, name, values, source)}")


def texts_of(options: argparse.Namespace, languages: list[str]) -> list[str]:
    """The sentences of some languages, less those that are judged on."""
    (corpus,) = training_modules("encoders.corpus")
    texts: list[str] = []
    for language in languages:
        file = options.text / f"{language}.txt"
        if not file.is_file():
            raise DataError(
                file, "is not there", "give a folder with LANGUAGE.txt, a sentence a line"
            )
        texts += [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    if options.leave_out:
        if not options.leave_out.is_dir():
            raise DataError(options.leave_out, "is no folder", "give the data folder of the tasks")
        texts = corpus.free_of_evaluation(texts, options.leave_out)
    return texts
