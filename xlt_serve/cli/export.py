"""``xlt export``: make a bundle of a checkpoint, of any classifier, or of an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from xlt_serve.cli.inspect import quality
from xlt_serve.cli.options import add_tables
from xlt_serve.cli.parser import command, training_modules, words

MORE = """examples:
  xlt export runs/topics --out topics-bundle --precision int8
  xlt export path/to/classifier --out bundle --file texts.csv --label topic
  xlt export cardiffnlp/twitter-xlm-roberta-base-sentiment --out bundle --languages en,de
  xlt export path/to/lora-adapter --out bundle
  xlt export path/to/model.onnx --out bundle

A checkpoint is that of `xlt train`, or a classifier as transformers saves it (folder or hub name), also a
LoRA adapter; an .onnx file is wrapped as it is, with the config and tokenizer beside it."""


def add(commands: Any) -> None:
    sub = command(commands, "export", run, "make a bundle of a checkpoint", MORE)
    sub.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder, a hub name or FILE.onnx")
    sub.add_argument("--out", type=Path, required=True, metavar="BUNDLE")
    sub.add_argument(
        "--precision",
        default="fp32",
        choices=("fp32", "fp16", "int8", "auto"),
        help="auto: the fastest here that passes the gate; fp16 is for GPUs (default: fp32)",
    )
    sub.add_argument(
        "--graphs",
        type=words,
        default=[],
        metavar="plain,perturbed,paired",
        help="default: those that the training methods call for",
    )
    sub.add_argument("--name", default="", help="default: the name of the folder")
    sub.add_argument(
        "--data",
        default="",
        metavar="PLACE",
        help="a task's folder; of files of one's own the dev rows: a file, a folder, dev-{language}.csv "
        "(default: the data of training)",
    )
    sub.add_argument(
        "--agreement",
        type=float,
        default=0.99,
        help="least share of texts with torch's label, per language (default: 0.99)",
    )
    sub.add_argument(
        "--languages", type=words, default=[], metavar="en,de", help="default: all of the data"
    )
    _add_brought(sub.add_argument_group("of classifiers that `xlt train` did not make"))
    _add_optional(sub)


def _add_brought(group: Any) -> None:
    group.add_argument(
        "--file",
        default="",
        metavar="FILE",
        help="texts to compare it with torch on: a file, a folder, a pattern (default: sentences that ship)",
    )
    group.add_argument("--text", default="text", metavar="COL", help='default: "text"')
    group.add_argument(
        "--label", default="", metavar="COL", help="scores and calibrates it (default: no labels)"
    )
    group.add_argument("--pair", default="", metavar="COL", help="the second text of a pair")
    group.add_argument("--language-column", default="", metavar="COL")
    group.add_argument("--source-language", default="", help="of its training (default: en)")
    group.add_argument(
        "--pairs", action="store_true", help="it reads two texts (default: as its config says)"
    )


def _add_optional(sub: argparse.ArgumentParser) -> None:
    """What few exports need."""
    sub.add_argument(
        "--exclude",
        default="",
        metavar="REGEX",
        help="layers that stay fp32, e.g. 'layer.0' or 'embeddings'",
    )
    sub.add_argument(
        "--trim-vocab",
        type=words,
        default=[],
        metavar="en,de",
        help="drop the pieces of scripts that these languages don't use",
    )
    sub.add_argument(
        "--tensorrt", action="store_true", help="refuse graphs that TensorRT does not take"
    )
    sub.add_argument(
        "--target-error",
        type=float,
        metavar="E",
        help="abstain so that at most this share of the answers is wrong on the source's dev data",
    )
    sub.add_argument(
        "--vector", action="store_true", help="the plain graph also gives the text's vector"
    )
    sub.add_argument(
        "--projection",
        default="",
        metavar="FILE",
        help="with --vector: safetensors of a linear map (weight, bias) that it goes through",
    )
    sub.add_argument(
        "--untrained",
        action="store_true",
        help="CHECKPOINT is an encoder, a shipped name or folder: for measuring latency, answers mean nothing",
    )
    sub.add_argument("--notes", default="", help="a line for the manifest")
    add_tables(sub, "tables of synonyms to serve with it")


def run(options: argparse.Namespace) -> None:
    export, untrained = training_modules("exporting.checkpoint", "exporting.untrained")
    wanted = {field: getattr(options, field) for field in export.Order.__dataclass_fields__}
    if options.untrained:
        made = untrained.export(str(options.checkpoint), options.out, export.Order(**wanted))
    else:
        made = export.export(options.checkpoint, options.out, export.Order(**wanted))
    size = sum(file.stat().st_size for file in made.path.rglob("*") if file.is_file())
    print(
        f"bundle: {made.path} ({made.manifest.name} {made.manifest.version}, {size / 1e6:.1f} MB)"
    )
    for key, value in quality(made.manifest).items():
        print(f"{key:12} {value}")
