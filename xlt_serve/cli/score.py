"""``xlt score``: files in, files out."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from xlt_serve import modes
from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command, words
from xlt_serve.errors import UsageError

MORE = """examples:
  xlt score reviews.csv scored.csv --text body
  xlt score 's3://data/2026/*.parquet' scored.parquet --text body   (with s3fs installed)
  xlt score pairs/ scored/ --bundle nli --text premise --pair hypothesis
  zcat big.jsonl.gz | xlt score - - | jq .xlt_label

IN is one or several of: a file, a glob in quotes, a folder (also partitioned, lang=de/…), a URL that fsspec knows, or -.
CSV, TSV (no quoting), JSONL, Parquet, and lines of text, also .gz .bz2 .xz .zst. Columns are kept;
added are xlt_label, xlt_probability, xlt_probabilities, xlt_language, xlt_tokens, xlt_truncated,
xlt_windows, xlt_mode, xlt_abstained, xlt_error. A text that comes again costs nothing. OUT is a file, or a folder (ending in /, or with no
known ending) with a file for each of IN's. In TSV, tabs and line breaks within values become spaces.

Killed at any moment, the same command goes on and the output is that of an uninterrupted run, byte
for byte. What is not finished lies in OUT.partial; OUT appears when it is whole, with OUT.score.json
that says what it was made from. A changed bundle or option is refused. Into a finished folder the same
command scores files that are new; with --key COL also the rows of IN that changed.

Where more than half of the first window fails, it stops with exit code 1: --max-errors 100% goes on.
Ray: IN, the bundle and OUT (or --work DIR) must be seen by all machines under one name."""


def add(commands: Any) -> None:
    sub = command(
        commands,
        "score",
        run,
        "classify files of any size; resumable",
        MORE,
        "Classify files of any size: streams, and goes on where it was killed.",
    )
    sub.add_argument("source", metavar="IN", nargs="+")
    sub.add_argument("out", metavar="OUT")
    sub.add_argument("--bundle", default=None, help="shipped name or folder (default: topics)")
    sub.add_argument(
        "--text",
        default=None,
        metavar="COL",
        help='doc.body is in doc; default: "text", or the only',
    )
    sub.add_argument("--pair", default=None, metavar="COL", help="the second text of a pair")
    common.add_mode(sub)
    common.add_reading(sub)
    sub.add_argument("--in-format", choices=("csv", "tsv", "jsonl", "txt", "parquet"), default=None)
    sub.add_argument(
        "--encoding", default="", metavar="NAME", help="of text files, as cp1252 (utf-8)"
    )
    sub.add_argument("--delimiter", default="", metavar="C", help="of CSV, as ';' or '\\t' (,)")
    sub.add_argument("--out-format", choices=("csv", "tsv", "jsonl", "parquet"), default=None)
    _add_columns(sub)
    _add_errors(sub)
    _add_again(sub)
    sub.add_argument("--engine", choices=("local", "ray"), default="local", help="default: local")
    sub.add_argument(
        "--workers", type=int, default=0, metavar="N", help="default: cores; with ray: actors, GPUs"
    )
    common.add_provider(sub)
    common.add_devices(sub)
    sub.add_argument(
        "--budget",
        type=int,
        default=0,
        metavar="TOKENS",
        help="padded, of one run (default: by provider)",
    )
    sub.add_argument(
        "--window", type=int, default=4096, metavar="ROWS", help="sorted by length at a time"
    )
    sub.add_argument("--work", default=None, metavar="DIR", help="instead of OUT.partial")
    sub.add_argument("--quiet", action="store_true", help="no progress, no summary")
    group = sub.add_argument_group("mode smoothed")
    common.add_smoothing(group, seed=0)
    group = sub.add_argument_group("modes paired and translate")
    group.add_argument(
        "--translation", default=None, metavar="COL", help="a text's own translation"
    )
    common.add_translators(group)
    group.add_argument(
        "--require-translation", action="store_true", help="an error instead of the plain answer"
    )


def _add_columns(sub: Any) -> None:
    sub.add_argument("--keep", type=words, default=None, metavar="A,B", help="columns of IN (all)")
    sub.add_argument("--drop", type=words, default=[], metavar="A,B", help="all columns but these")
    sub.add_argument("--prefix", default="xlt_", help="of the columns that are added")


def _add_errors(sub: Any) -> None:
    sub.add_argument("--strict", action="store_true", help="stop at the first row with an error")
    sub.add_argument(
        "--max-errors", default=None, metavar="N|x%", help="default: half of the first window"
    )


def _add_again(sub: Any) -> None:
    """What to do where something is there already."""
    sub.add_argument(
        "--key",
        default=None,
        metavar="COL",
        help="OUT is finished: score new and changed rows alone",
    )
    sub.add_argument(
        "--overwrite",
        action="store_true",
        help="replace OUT (in a folder, files of the same names), and what another order left",
    )


def run(options: argparse.Namespace) -> None:
    from xlt_serve.scoring import Order, score
    from xlt_serve.text import synonyms

    order = Order(
        source=tuple(options.source),
        out=options.out,
        bundle=options.bundle,
        text=options.text,
        pair=options.pair,
        translation=options.translation,
        translators=None if options.translators is None else str(options.translators),
        tables={lg: str(file) for lg, file in synonyms.files(options.tables).items()},
        settings=common.settings_of(options),
        in_format=options.in_format,
        encoding=options.encoding,
        delimiter=options.delimiter,
        out_format=options.out_format,
        prefix=options.prefix,
        window=options.window,
        provider=options.provider,
        devices=common.devices_of(options.device, options.provider),
        budget=options.budget,
        engine=options.engine,
        workers=options.workers,
        keep=None if options.keep is None else tuple(options.keep),
        drop=tuple(options.drop),
        key=options.key,
        max_errors=options.max_errors,
        strict=options.strict,
        overwrite=options.overwrite,
        work=options.work,
    )
    if order.translation and not modes.MODES[order.mode].translates:
        raise UsageError(
            "--translation", f"{order.mode} prediction reads no translation", "leave it out"
        )
    try:
        summary = score(order, quiet=options.quiet)
    except KeyboardInterrupt:
        if options.out != "-":
            print("xlt: what was scored is kept; the same command goes on", file=sys.stderr)
        raise
    if options.quiet:
        return
    found = summary.counts
    if not summary.said and options.out != "-":
        print(f"{options.out}: was finished before, {found.rows:,} rows", file=sys.stderr)
        return
    print(f"{options.out}: {summary.said}", file=sys.stderr)
