"""``xlt score``: files in, files out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import Any

from xlt_serve.errors import UsageError
from xlt_serve.schema import LONG_CHOICES, MODES, Settings, Smoothing

MORE = """examples:
  xlt score reviews.csv scored.csv --text body
  xlt score 's3://data/2026/*.parquet' scored.parquet --text body   (with s3fs installed)
  xlt score pairs/ scored/ --bundle nli --text premise --pair hypothesis
  zcat big.jsonl.gz | xlt score - - | jq .xlt_label

IN is a file, a glob in quotes, a folder (also partitioned, lang=de/…), a URL that fsspec knows, or -.
CSV, TSV (no quoting), JSONL, Parquet, and lines of text, also .gz .bz2 .xz .zst. Columns are kept;
added are xlt_label, xlt_probability, xlt_probabilities, xlt_language, xlt_tokens, xlt_truncated,
xlt_windows, xlt_mode, xlt_abstained, xlt_error. OUT is a file, or a folder (ending in /, or with no
known ending) with a file for each of IN's. In TSV, tabs and line breaks within values become spaces.

Killed at any moment, the same command goes on and the output is that of an uninterrupted run, byte
for byte. What is not finished lies in OUT.partial; OUT appears when it is whole, with OUT.score.json
that says what it was made from. A changed input, bundle or option is refused."""


def add(commands: Any) -> None:
    sub = commands.add_parser(
        "score",
        help="classify files of any size; resumable",
        description="Classify files of any size: streams, and goes on where it was killed.",
        epilog=MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.set_defaults(run=run)
    sub.add_argument("source", metavar="IN")
    sub.add_argument("out", metavar="OUT")
    sub.add_argument("--bundle", default=None, help="shipped name or folder (default: topics)")
    sub.add_argument("--text", default=None, metavar="COL", help='default: "text", or the only one')
    sub.add_argument("--pair", default=None, metavar="COL", help="the second text of a pair")
    sub.add_argument("--translation", default=None, metavar="COL", help="a text's own translation")
    sub.add_argument("--mode", choices=MODES, default="plain", help="default: plain")
    sub.add_argument(
        "--long", choices=LONG_CHOICES, default="truncate", help="for texts over the limit"
    )
    sub.add_argument("--language", default=None, help="instead of detecting it")
    sub.add_argument("--max-length", type=int, default=None, metavar="TOKENS")
    sub.add_argument("--abstain-below", type=float, default=None, metavar="P")
    sub.add_argument("--top-k", type=int, default=None, metavar="K", help="probabilities to keep")
    sub.add_argument("--in-format", choices=("csv", "tsv", "jsonl", "txt", "parquet"), default=None)
    sub.add_argument("--out-format", choices=("csv", "tsv", "jsonl", "parquet"), default=None)
    sub.add_argument("--prefix", default="xlt_", help="of the columns that are added")
    sub.add_argument("--strict", action="store_true", help="stop at the first row with an error")
    sub.add_argument(
        "--overwrite", action="store_true", help="replace OUT, and what another order left"
    )
    sub.add_argument("--engine", choices=("local", "ray"), default="local", help="default: local")
    sub.add_argument(
        "--workers", type=int, default=0, metavar="N", help="default: a core each; with ray: actors"
    )
    sub.add_argument(
        "--provider", choices=("cpu", "cuda", "tensorrt"), default="cpu", help="default: cpu"
    )
    sub.add_argument(
        "--window", type=int, default=4096, metavar="ROWS", help="sorted by length at a time"
    )
    sub.add_argument("--work", default=None, metavar="DIR", help="instead of OUT.partial")
    sub.add_argument("--quiet", action="store_true", help="no progress, no summary")
    group = sub.add_argument_group("mode smoothed")
    defaults = Smoothing()
    group.add_argument("--samples", type=int, default=defaults.samples, help="most draws")
    group.add_argument("--alpha", type=float, default=defaults.alpha, help="error level")
    group.add_argument("--radius", type=float, default=None, help="to certify")
    group.add_argument("--noise", default=None, help="gaussian or uniform (default: as trained)")
    group.add_argument("--scale", type=float, default=None, help="of the noise")
    group.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """What ``predict`` is given: the fields of ``Settings`` that this command has an option for."""
    out = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    if options.mode == "smoothed":
        known = [f.name for f in fields(Smoothing) if hasattr(options, f.name)]
        given: dict[str, Any] = {name: getattr(options, name) for name in known}
        out["smoothing"] = Smoothing(**given)
    Settings(**out)  # a wrong option fails before a model is loaded
    return out


def run(options: argparse.Namespace) -> None:
    from xlt_serve.scoring import Order, score

    order = Order(
        source=options.source,
        out=options.out,
        bundle=options.bundle,
        text=options.text,
        pair=options.pair,
        translation=options.translation,
        settings=settings_of(options),
        in_format=options.in_format,
        out_format=options.out_format,
        prefix=options.prefix,
        window=options.window,
        provider=options.provider,
        engine=options.engine,
        workers=options.workers,
        strict=options.strict,
        overwrite=options.overwrite,
        work=options.work,
    )
    if order.translation and order.mode == "plain":
        raise UsageError("--translation", "plain prediction reads no translation", "leave it out")
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
