"""``xlt assess``: how good is a bundle where there are no labels, and what is to be labelled next?"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlt_serve import bundle as bundles
from xlt_serve import modes
from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command
from xlt_serve.errors import DataError, UsageError
from xlt_serve.evaluation import sampling
from xlt_serve.files import dialect, formats
from xlt_serve.files.dialect import Dialect
from xlt_serve.files.labelled import Columns, Stated, files_of, stream
from xlt_serve.files.rows import refuse, source_of

if TYPE_CHECKING:
    from xlt_serve.evaluation.observing import Observed

MOST_LABELS = 1000
"""That are looked at."""
MOST_LANGUAGES = 500
"""More are no languages."""

MORE = """examples:
  xlt assess reviews-bundle --file unlabelled.csv --text body --language-column lang
  xlt assess reviews-bundle --file tickets.jsonl --labelled dev.csv --sample to-label.csv
  xlt assess reviews-bundle --file 'texts-{language}.csv' --translators translators.toml

Rows that name no language are in the one that they look like. Accuracy is estimated from languages that have
labels: those of --labelled, rows of the file itself that have one, else what the bundle was judged on when it
was exported. How far off that is, is measured on them. --sample writes texts of the language to label next."""


def add(commands: Any) -> None:
    sub = command(
        commands, "assess", run, "estimate a bundle's accuracy where there are no labels", MORE
    )
    sub.add_argument("bundle", metavar="BUNDLE", help="shipped name or folder")
    group = sub.add_argument_group("rows")
    group.add_argument("--file", required=True, metavar="FILE", help="a file, a folder, a pattern")
    group.add_argument(
        "--labelled", default="", metavar="FILE", help="other rows, with labels; columns alike"
    )
    group.add_argument("--text", default="text", metavar="COL", help='default: "text"')
    group.add_argument(
        "--label", default=None, metavar="COL", help='default: "label", if there; may be empty'
    )
    group.add_argument("--pair", default="", metavar="COL", help="the second text of a pair")
    group.add_argument("--id", default="", metavar="COL", help="kept in the sample")
    group.add_argument("--language-column", default="", metavar="COL")
    group.add_argument("--language", default="", help="of rows that name none (default: detected)")
    group.add_argument("--skip-bad", action="store_true", help="leave out rows that can't be read")
    common.add_dialect(group)
    group = sub.add_argument_group("how they are predicted")
    group.add_argument("--abstain-below", type=float, default=None, metavar="P")
    group.add_argument("--max-length", type=int, default=None, metavar="TOKENS")
    common.add_translators(group)
    group = sub.add_argument_group("what to label")
    group.add_argument("--sample", type=Path, default=None, metavar="OUT.csv")
    group.add_argument("--count", type=int, default=100, metavar="N", help="texts (100)")
    group.add_argument("--seed", type=int, default=0, help="of the texts by chance (0)")
    sub.add_argument("--json", action="store_true", help="JSON instead of a table")


def run(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from xlt_serve.classifier import load
    from xlt_serve.evaluation import assessment, distance, observing

    settings = modes.settings(abstain_below=options.abstain_below, max_length=options.max_length)
    files = [AssessedFile.of(options.file, options, needs_labels=False)]
    if options.labelled:
        files.append(AssessedFile.of(options.labelled, options, needs_labels=True))
    refuse_sample(options, files[0].columns)
    manifest = bundles.load(options.bundle).manifest
    surveys = [each.survey(options.skip_bad) for each in files]
    for place, survey in zip(files, surveys, strict=True):
        survey.refuse_others(place, manifest)
    classifier = load(options.bundle, translators=options.translators)
    entry = manifest.checks.get(distance.ENTRY)
    summary = distance.read(entry) if entry else None
    count = options.count if options.sample else 0
    whole = sum(each.rows for each in surveys)
    with tqdm(total=whole, unit=" rows", delay=2, disable=not sys.stderr.isatty()) as bar:
        first, *others = (
            observing.Observer(classifier, settings, summary, n, options.seed).observe(
                place.rows(), bar.update
            )
            for place, n in zip(files, (count, 0), strict=False)
        )
    labelled = others[0] if others else {}
    unknown = classifier.encoder.unknown is not None
    name = str(options.bundle)
    found = assessment.assessment(observing.folded(first), labelled, manifest, name, unknown)
    if options.json:
        print(json.dumps(found.to_dict()))
    else:
        print("\n".join(assessment.lines(found)))
    if options.sample:
        without = set().union(*(each.labelled(options.seed) for each in files))
        write_sample(options, files[0].columns, found.label_next, first, without)


@dataclass(frozen=True)
class Survey:
    """What is in a file before anything is predicted."""

    rows: int
    labels: Counter[str]
    pairs: bool

    def refuse_others(self, place: AssessedFile, manifest: bundles.Manifest) -> None:
        """Rows of another task would be assessed without a word."""
        if self.pairs != manifest.pair:
            kinds = ("pairs", "single texts") if manifest.pair else ("single texts", "pairs")
            raise UsageError(
                manifest.name,
                f"classifies {kinds[0]}, the rows are {kinds[1]}",
                "name the columns: --text, --pair",
            )
        if self.labels and not self.labels.keys() & set(manifest.labels):
            shown = ", ".join(sorted(self.labels)[:3])
            raise UsageError(
                place.place,
                f"has labels in {place.columns.label!r} ({shown}), none of which the model has; "
                f"its own: {manifest.labels[0]}, …",
                "name another column, or none: --label ''",
            )


@dataclass(frozen=True)
class AssessedFile:
    """Files with their columns, read as often as is needed."""

    place: str
    columns: Columns
    language: str
    needs_labels: bool
    given: Dialect

    @classmethod
    def of(cls, place: str, options: argparse.Namespace, *, needs_labels: bool) -> AssessedFile:
        files = files_of(place)
        given = dialect.said(options.encoding, options.delimiter).check()
        names = formats.columns(source_of(next(iter(files.values())), given))
        label = options.label
        if label is None:
            label = "label" if needs_labels or "label" in names else ""
        language = options.language_column
        if language not in names and "" not in files:  # the files' names say it
            language = ""
        columns = Columns(options.text, label, options.pair, options.id, language)
        if needs_labels and not label:
            raise UsageError("--labelled", "needs a column of labels", "name it: --label COL")
        return cls(place, columns, options.language, needs_labels, given)

    def rows(self, bad: list[str] | None = None) -> Iterator[Stated]:
        """Without those of a sample that were chosen because the model was unsure of them: how often it is
        right there says nothing of other texts."""
        problems: list[str] = []
        for stated in stream(self.place, self.columns, self.language, problems, self.given):
            if self.needs_labels and not stated.row.label.strip():
                problems.append(
                    f"{stated.file} row {stated.number}: has an empty {self.columns.label}"
                )
            elif not self.needs_labels or stated.values.get(sampling.DRAWN) != sampling.UNSURE:
                yield stated
        if bad is not None:
            bad += problems

    def survey(self, skip_bad: bool) -> Survey:
        bad: list[str] = []
        rows, labels, languages = 0, Counter[str](), set[str]()
        for stated in self.rows(bad):
            rows += 1
            languages.add(stated.row.language)
            if len(languages) > MOST_LANGUAGES:
                raise UsageError(
                    self.columns.language,
                    f"names over {MOST_LANGUAGES} languages",
                    "name the column of languages: --language-column",
                )
            if stated.row.label and len(labels) < MOST_LABELS:
                labels[stated.row.label] += 1
        if skip_bad:
            for problem in bad:
                print(f"left out: {problem}", file=sys.stderr)
        else:
            refuse(self.place, bad, "mend them, or leave them out with --skip-bad")
        if not rows:
            raise DataError(self.place, "has no rows")
        return Survey(rows, labels, bool(self.columns.pair))

    def labelled(self, seed: int) -> set[bytes]:
        """Keys of the texts that have a label."""
        rows = stream(self.place, self.columns, self.language, [], self.given)
        return {sampling.key(each.row.item, seed) for each in rows if each.row.label.strip()}


def refuse_sample(options: argparse.Namespace, columns: Columns) -> None:
    """Before hours of work."""
    if options.count < 2:
        raise UsageError(f"--count {options.count}", "must be at least 2")
    out = options.sample
    if out is None:
        return
    if out.suffix != ".csv":
        raise UsageError(f"--sample {out}", "is written as CSV", "name it OUT.csv")
    if out.exists():
        raise UsageError(f"--sample {out}", "is there already, perhaps with labels", "name another")
    if not out.parent.is_dir():
        raise UsageError(f"--sample {out}", "its folder is not there", "make it first")
    sampling.header(columns)


def write_sample(
    options: argparse.Namespace,
    columns: Columns,
    language: str | None,
    found: Mapping[str, Observed],
    without: set[bytes],
) -> None:
    drawn = found[language].candidates.drawn(without) if language else []
    if not drawn:
        print(f"{options.sample}: not written, there is no text to label", file=sys.stderr)
        return
    bundles.write_whole(options.sample, sampling.table(drawn, columns, str(language)))
    chance = sum(kind == sampling.RANDOM for kind, _ in drawn)
    print(
        f"{options.sample}: {len(drawn)} texts in {language}, {chance} by chance and "
        f"{len(drawn) - chance} of which it is least sure ({sampling.DRAWN}). Fill in the labels; then\n"
        f"  --labelled {options.sample} counts those by chance, xlt eval --file all of them",
        file=sys.stderr,
    )
