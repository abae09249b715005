"""``xlt translate``: record translations of a file's rows, or of a task's."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command, training_modules, words
from xlt_serve.errors import UsageError

MORE = """examples:
  xlt translate reviews.toml --to de,fr --round-trip --translators translators.toml --out mt
  xlt translate reviews.toml --from de,fr --to en --split dev,test --translators translators.toml --out mt
  xlt translate train.csv --text body --from en --to es --translators translators.toml --out mt
  xlt translate sib200 --data ../shared/data --to es --translators translators.toml --out mt

The first argument is a config, a file (also a folder, or a pattern with {language}), or a task.
OUT then has en-de.train.tsv (id, engine, text), en-de.train.rejected.tsv with what was kept out of it and
why, and translations.json, the report. A config finds them by translations = "OUT" in [task].

Stopped at any moment, the same command goes on; a text is translated once. Kept out are translations
that are empty, broken, a copy of the text, surely in another language, repetitions, or over three times
as long or short for their text as is usual in the set."""
TIMEOUT = 600.0
"""Seconds that an engine may take for a call, where its file does not say."""


def add(commands: Any) -> None:
    sub = command(commands, "translate", run, "record translations of rows, to train with", MORE)
    sub.add_argument("source", metavar="FILE_OR_TASK", help="rows, a config (.toml), or a task")
    sub.add_argument(
        "--from", dest="sources", type=words, default=[], metavar="en",
        help="languages of the texts (default: the config's source)",
    )  # fmt: skip
    sub.add_argument("--to", dest="targets", type=words, required=True, metavar="de,fr")
    sub.add_argument("--translators", type=Path, required=True, metavar="FILE", help="TOML")
    sub.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of translations"
    )
    sub.add_argument(
        "--split", type=words, default=["train"], metavar="train,dev",
        help="of a task; of a file what it is to be called (default: train)",
    )  # fmt: skip
    sub.add_argument(
        "--round-trip", action="store_true", help="also what was translated, back (for xmixup)"
    )
    sub.add_argument("--data", default="", metavar="DIR", help='of a task: its folder, or "hub"')
    group = sub.add_argument_group("of a file")
    group.add_argument("--text", default="text", metavar="COL", help='default: "text"')
    group.add_argument("--pair", default="", metavar="COL", help="the second text of a pair")
    group.add_argument("--id", default="", metavar="COL", help="default: the row's number, from 0")
    group.add_argument("--language-column", default="", metavar="COL")
    group.add_argument("--skip-bad", action="store_true", help="leave out rows that can't be read")
    common.add_dialect(group)
    sub.add_argument("--json", action="store_true", help="the report as JSON instead of a table")
    sub.add_argument("--overwrite", action="store_true", help="begin anew, replace what is there")


def run(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from xlt_serve import translation
    from xlt_serve.translation import recording
    from xlt_serve.translation.config import essence
    from xlt_serve.translation.protocol import TranslationError

    asked = sets_of(options)
    back = [replace(rows, source=rows.target, target=rows.source) for rows in asked]
    back = [replace(rows, of=f"{rows.target}-{rows.source}.{rows.split}.tsv") for rows in back]
    found = []
    with translation.load(options.translators, patient=True, timeout=TIMEOUT) as translators:
        made = recording.Recording(
            options.out, translators, essence(options.translators), options.overwrite
        )
        made.check([*asked, *(back if options.round_trip else [])])
        try:
            for rows, reverse in zip(asked, back, strict=True):
                todo = [rows]
                while todo:
                    one = todo.pop()
                    count = len(one.texts())
                    print(f"{one.name}: {len(one.rows):,} rows, {count:,} texts", file=sys.stderr)
                    with tqdm(total=count, unit=" texts", disable=not sys.stderr.isatty()) as bar:
                        kept, quality = made.record(one, bar.update)
                    found.append(quality)
                    if options.round_trip and one is rows:
                        todo.append(replace(reverse, rows=kept))
        except KeyboardInterrupt:
            print("xlt: what was translated is kept; the same command goes on", file=sys.stderr)
            raise
    if options.json:
        print(json.dumps([asdict(quality) for quality in found], ensure_ascii=False))
    else:
        print("\n".join(recording.table(found)))
    if failed := sum(quality.failed for quality in found):
        raise TranslationError(
            f"{failed} rows", f"have no translation ({made.failure})", "the same command asks again"
        )


def sets_of(options: argparse.Namespace) -> list[Any]:
    """What is to be translated: for each source, target and split the rows."""
    from xlt_serve.translation.recording import RowSet

    sources = options.sources
    if options.source.endswith(".toml") or is_task(options.source):
        sources, rows = task_rows(options)
    else:
        rows = file_rows(options)
    out = [
        RowSet(source, target, split, rows[source, split], f"{options.source} {split} {source}")
        for source in sources
        for target in options.targets
        for split in options.split
        if source != target
    ]
    if not out:
        same = ",".join(options.targets)
        raise UsageError(f"--to {same}", "is the language of the texts", "name another")
    return out


def is_task(name: str) -> bool:
    """A word that is no file."""
    return name.isidentifier() and not Path(name).exists()


def task_rows(options: argparse.Namespace) -> tuple[list[str], dict[tuple[str, str], list[Any]]]:
    """The languages of the texts, and the rows as training reads them."""
    from xlt_serve.translation.recording import SourceRow

    data, settings, early, tables = training_modules(
        "data", "loop.settings", "loop.early", "loop.toml_tables"
    )
    if options.source.endswith(".toml"):
        early.check(Path(options.source))
        table = tables.read(Path(options.source)).get("task", {})
        task = data.TaskConfig(**table)
    else:
        task = data.TaskConfig(options.source, options.data)
        if problems := settings.task_problems(task):
            raise UsageError(f"xlt translate {options.source}", problems[0], "see --help")
    examples = data.opened(task)
    sources = options.sources or [task.source]
    rows = {
        (source, split): [SourceRow(each.id, each.texts()) for each in loaded]
        for source in sources
        for split in options.split
        for loaded in [examples.load(split, source)]
    }
    return sources, rows


def file_rows(options: argparse.Namespace) -> dict[tuple[str, str], list[Any]]:
    from xlt_serve.files import dialect, labelled
    from xlt_serve.files.rows import refuse
    from xlt_serve.translation.recording import SourceRow

    if len(options.split) > 1:
        raise UsageError(
            f"--split {','.join(options.split)}", "a file is of one split", "name one, as dev"
        )
    if not options.sources:
        raise UsageError(options.source, "does not say its language", "give --from en")
    columns = labelled.Columns(options.text, "", options.pair, options.id, options.language_column)
    bad: list[str] = []
    given = dialect.said(options.encoding, options.delimiter)
    found = labelled.read(options.source, columns, options.sources[0], bad, given=given)
    if options.skip_bad:
        for problem in bad:
            print(f"left out: {problem}", file=sys.stderr)
    else:
        refuse(options.source, bad, "mend them, or leave them out with --skip-bad")
    out = {}
    for language in options.sources:
        mine = [row for row in found if row.language == language]
        if not mine:
            have = ", ".join(sorted({row.language for row in found}))
            raise UsageError(f"--from {language}", f"the rows are in {have}", "name one of these")
        texts = [(row.text,) if row.pair is None else (row.text, row.pair) for row in mine]
        rows = [SourceRow(row.id, both) for row, both in zip(mine, texts, strict=True)]
        out[language, options.split[0]] = rows
    return out
