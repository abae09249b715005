"""``xlt init``: looks at a file of labelled rows and writes a config for it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command, training_modules
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files import dialect, formats, labelled
from xlt_serve.files.labelled import Columns
from xlt_serve.files.rows import numbered_rows, refuse, source_of

MORE = """examples:
  xlt init reviews.csv
  xlt init reviews.csv --dev 'dev-{language}.csv' --out reviews.toml
  xlt init tickets.jsonl --text body --label topic --skip-bad

Then: xlt train reviews.toml --out runs/reviews"""

CONFIG = """\
# xlt train {name} --out {run}
# Paths are relative to where the command runs. More on them: docs/training.md.
encoder = "small"            # or a name on the Hugging Face hub, as xlm-roberta-base, or a folder
seed = 0

[task]
name = "files"
train = {train}
{dev}{test}text = {text}
label = {label}
{columns}source = {source}               # language of the labels that are trained on
{supervised}{skip}
[train]                      # suits the encoder that ships; for XLM-R: 2e-5, head_first = 0, freeze = -1
{train_table}"""

ABOUT = {
    "head_first": "epochs that train the head alone, so that the other languages stay in place",
    "freeze": "the embeddings stay as they are; -1: nothing is frozen",
    "group_by_length": "texts of similar length together",
}


def add(commands: Any) -> None:
    sub = command(
        commands, "init", run, "look at a file of labelled rows, write a config for it", MORE
    )
    sub.add_argument("file", metavar="FILE", help="CSV, TSV, JSONL or Parquet")
    sub.add_argument(
        "--dev", default="", metavar="FILE", help="dev rows: a file, a folder, dev-{language}.csv"
    )
    sub.add_argument(
        "--test", default="", metavar="FILE", help="rows for `xlt eval RUN --split test` alone"
    )
    sub.add_argument("--text", default="", metavar="COL", help="default: by its name, else guessed")
    sub.add_argument("--label", default="", metavar="COL")
    sub.add_argument("--pair", default="", metavar="COL", help="the second text of a pair")
    sub.add_argument("--id", default="", metavar="COL", help="shared by translations of a text")
    sub.add_argument("--language-column", default="", metavar="COL")
    common.add_dialect(sub)
    sub.add_argument(
        "--skip-bad", action="store_true", help="go on without rows that can't be read"
    )
    sub.add_argument("--out", type=Path, default=None, help="default: FILE's name, .toml")
    sub.add_argument("--force", action="store_true", help="write over what is there")


def run(options: argparse.Namespace) -> None:
    (survey,) = training_modules("data.survey")
    out = options.out or Path(Path(options.file).name.partition(".")[0] + ".toml")
    if out.exists() and not options.force:
        raise UsageError(out, "is there already", "give another --out, or --force")
    said = dialect.said(options.encoding, options.delimiter)
    source = source_of(Path(options.file), said)
    bad: list[str] = []
    rows = [row for _, row in numbered_rows(Path(options.file), bad, said)]
    if not rows:
        refuse(options.file, bad)
        raise DataError(options.file, "has no rows")
    given = Columns(options.text, options.label, options.pair, options.id, options.language_column)
    columns = survey.guessed(rows, given)
    if not columns.language:  # the train rows may be of one language, and the others say theirs
        places = (options.dev, options.test)
        files = [file for place in places for file in labelled.files_of(place).values()]
        there = [name for file in files for name in formats.columns(source_of(file, said))]
        columns = replace(columns, language=survey.language_column(there))
    bad = []
    train = labelled.read(options.file, columns, "", bad, marked=False, given=said)
    dev = labelled.read(options.dev, columns, "", bad, marked=False, given=said)
    test = labelled.read(options.test, columns, "", bad, marked=False, given=said)
    if not options.skip_bad:
        problems = [problem.removeprefix(f"{options.file} ") for problem in bad]
        refuse(options.file, problems, "mend them, or leave them out with --skip-bad")
    found = survey.survey(train, dev, test, told=all(row.language for row in train))
    written = f"{source.format}, {source.encoding}"
    written += f", fields apart by {source.delimiter!r}" if source.format == "csv" else ""
    print(f"file        {options.file} ({written})")
    print(f"columns     {_told(columns)}")
    print("\n".join(found.lines()))
    if bad:
        print(f"! {len(bad)} bad rows are left out: {'; '.join(bad)}")
    out.write_text(
        config_of(
            options, out, columns, found, bool(columns.language) and columns.language in rows[0]
        ),
        encoding="utf-8",
    )
    print(f"\n{out} is written. Next: xlt train {out} --out runs/{out.stem}")


def config_of(
    options: argparse.Namespace, out: Path, columns: Columns, found: Any, several: bool
) -> str:
    """``several``: the train rows say their languages."""
    (chosen,) = training_modules("loop.settings")
    settings = chosen.defaults("small")
    known = [language for language in found.languages if language != "unknown"]
    source = known[0] if known else "en"
    others = known[1:] if several else []
    named = {name: getattr(columns, name) for name in ("pair", "id", "language")}
    named |= asdict(dialect.said(options.encoding, options.delimiter))
    return CONFIG.format(
        name=out,
        run=f"runs/{out.stem}",
        train=_toml(options.file),
        dev=_dev(options.dev, others),
        test=f"test = {_toml(options.test)}\n" if options.test else "",
        text=_toml(columns.text),
        label=_toml(columns.label),
        columns="".join(f"{name} = {_toml(value)}\n" for name, value in named.items() if value),
        source=_toml(source),
        supervised=_supervised(others),
        skip="skip_bad = true\n" if options.skip_bad else "",
        train_table="".join(_setting(name, value) for name, value in settings.items()),
    )


def _setting(name: str, value: object) -> str:
    line = f"{name} = {json.dumps(value)}"
    return f"{line:28} # {ABOUT[name]}\n" if name in ABOUT else f"{line}\n"


def _dev(place: str, others: Sequence[str]) -> str:
    if place:
        return f"dev = {_toml(place)}\n"
    share = (
        "# dev = …  # none: 15 % of the rows are held out, of each label alike (held_out = 0.15)\n"
    )
    if others:
        share += f"#           and rows in {', '.join(others)} are judged on\n"
    return share


def _supervised(others: Sequence[str]) -> str:
    if not others:
        return ""
    listed = ", ".join(_toml(language) for language in others)
    return f"# supervised = [{listed}]  # to train on the rows of these languages, too\n"


def _told(columns: Columns) -> str:
    roles = {"text": columns.text, "label": columns.label, "pair": columns.pair, "id": columns.id}
    return ", ".join(
        f"{role} = {name}"
        for role, name in (roles | {"language": columns.language}).items()
        if name
    )


def _toml(text: str) -> str:
    """A string as TOML has it: JSON's are a part of them."""
    return json.dumps(text, ensure_ascii=False)
