"""``xlt eval``: how good is a model, language by language; is another better?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve import modes
from xlt_serve.cli import options as common
from xlt_serve.cli.parser import command, training_modules, words
from xlt_serve.errors import UsageError
from xlt_serve.types import Settings

MORE = """examples:
  xlt eval reviews-bundle --file test.csv --text body --label topic --language-column lang
  xlt eval reviews-bundle --file 'dev-{language}.csv' --html report.html
  xlt eval reviews-bundle --file test/ --mode smoothed --samples 200
  xlt eval runs/reviews --split test
  xlt eval runs/topics --task sib200 --data ../shared/data
  xlt eval --compare plain=runs/1,runs/2,runs/3 ear=runs/4,runs/5,runs/6 --file test.csv

A file is CSV, TSV, JSONL or Parquet, also compressed; a folder has one for each language (test-de.csv).
Bundles are judged as they are served, without torch; checkpoints and --task need xlt-serve[train]."""

SPLITS = ("train", "dev", "test")
OWN = ("files", "hub")
"""Tasks whose data only a run's config names."""
FEW_LABELS = 10
"""Up to which the confusion matrix is shown without being asked for."""


LANGUAGE = "language"
"""A column that says what it is."""


def add(commands: Any) -> None:
    sub = command(commands, "eval", run, "score bundles or checkpoints, language by language", MORE)
    sub.add_argument("model", nargs="?", default=None, metavar="BUNDLE_OR_CHECKPOINT")
    sub.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="NAME=MODEL,…",
        help="two or more, each with one model or several runs; differences to the first",
    )
    group = sub.add_argument_group("labelled rows: your own")
    group.add_argument("--file", default=None, metavar="FILE", help="a file, a folder, a pattern")
    group.add_argument("--text", default="text", metavar="COL", help='default: "text"')
    group.add_argument("--label", default="label", metavar="COL", help='default: "label"')
    group.add_argument("--pair", default="", metavar="COL", help="the second text of a pair")
    group.add_argument("--id", default="", metavar="COL", help="shared by translations of a text")
    group.add_argument(
        "--language-column", default="", metavar="COL", help='default: "language", if there'
    )
    group.add_argument(
        "--language", default=None, help="of rows of which nothing says it (default: as trained)"
    )
    group.add_argument("--skip-bad", action="store_true", help="leave out rows that can't be read")
    common.add_dialect(group)
    group = sub.add_argument_group("labelled rows: a named task's, or those of a run's config")
    group.add_argument("--task", default=None)
    group.add_argument(
        "--data", default=None, metavar="DIR", help='folder of the task\'s files, or "hub"'
    )
    group.add_argument(
        "--split",
        default="",
        choices=SPLITS,
        help="without --task that of the config (default: dev)",
    )
    group = sub.add_argument_group("how they are predicted")
    common.add_mode(group)
    group.add_argument("--abstain-below", type=float, default=None, metavar="P")
    group.add_argument("--max-length", type=int, default=None, metavar="TOKENS")
    common.add_smoothing(group, seed=0)
    common.add_translators(group)
    sub.add_argument(
        "--languages", type=words, default=[], metavar="en,de", help="default: all that there are"
    )
    sub.add_argument(
        "--distant",
        type=words,
        default=[],
        metavar="ar,zh",
        help='languages of the mean "distant" (default: those that are not Indo-European)',
    )
    sub.add_argument(
        "--confusion",
        action="store_true",
        help=f"what each label was taken for (default: of one model, with {FEW_LABELS} labels or fewer)",
    )
    sub.add_argument("--json", action="store_true", help="JSON instead of a table")
    sub.add_argument("--html", type=Path, default=None, metavar="FILE", help="a page beside it")


def run(options: argparse.Namespace) -> None:
    from xlt_serve.evaluation import comparison, findings, groups, page

    if options.html and not options.html.parent.is_dir():
        raise UsageError(options.html, "its folder is not there", "make it first")
    systems = systems_of(options)
    settings = settings_of(options)
    first = next(iter(systems.values()))[0]
    rows = rows_of(options, source_of(first), first)
    found = {
        name: [judged(place, rows, settings, options) for place in places]
        for name, places in systems.items()
    }
    distant = options.distant or groups.DISTANT
    models = [
        findings.findings(one.answers, one.name, one.version, options.mode, one.source, distant)
        for runs in found.values()
        for one in runs
    ]
    comparisons = []
    if len(found) > 1:
        judgements = {name: [one.answers for one in runs] for name, runs in found.items()}
        comparisons = comparison.compared(judgements, models[0].source, distant)
    if options.json:
        values = {"models": [each.to_dict() for each in models]}
        print(json.dumps(values | {"comparisons": [asdict(each) for each in comparisons]}))
    else:
        named = [name for name, runs in found.items() for _ in runs]
        told = told_of(models, named, options.confusion)
        print("\n".join([*told, *findings.comparison_lines(comparisons)]))
    if options.html:
        options.html.write_text(page.page(models, comparisons), encoding="utf-8")


def told_of(models: Sequence[Any], named: Sequence[str], confusion: bool) -> list[str]:
    """One model whole; of several what each is like, by its name in the comparison."""
    from xlt_serve.evaluation import findings

    if len(models) > 1:
        pairs = list(zip(models, named, strict=True))
        out = [line for model, name in pairs for line in [*findings.short_lines(model, name), ""]]
        if confusion:
            for model, name in pairs:
                out += [f"{name} ({model.model})", *findings.confusion_lines(model), ""]
        return out
    (model,) = models
    out = [*findings.lines(model), "", *findings.label_lines(model)]
    labels = {label for each in model.languages.values() for label in each.labels}
    if confusion or len(labels) <= FEW_LABELS:
        out += ["", *findings.confusion_lines(model)]
    return out


def systems_of(options: argparse.Namespace) -> dict[str, list[Path]]:
    """The models by name."""
    if bool(options.model) == bool(options.compare):
        raise UsageError("xlt eval", "takes a model or --compare", "give one of the two")
    if options.model:
        return {options.model: [Path(options.model)]}
    out: dict[str, list[Path]] = {}
    for each in options.compare:
        name, equals, places = each.partition("=")
        if not equals or not words(places):
            raise UsageError(f"--compare {each}", "is not NAME=MODEL,…", "name it: a=runs/1,runs/2")
        if name in out:
            raise UsageError(f"--compare {each}", f"{name} is there already", f"{name}=RUN,RUN")
        out[name] = [Path(place) for place in words(places)]
    if len(out) < 2:
        raise UsageError("--compare", "takes two names or more", "give a=… b=…")
    return out


def settings_of(options: argparse.Namespace) -> Settings:
    given = common.settings_of(options)
    given.pop("language", None)  # that of each row
    made: Settings = modes.settings(**given)
    return made


def rows_of(options: argparse.Namespace, source: str, model: Path) -> list[Any]:
    """Labelled rows of a file, a task or the model's own config, in the languages that were asked for."""
    from xlt_serve.files import dialect, labelled
    from xlt_serve.files.rows import refuse

    if bool(options.file) + bool(options.task or options.split) != 1:
        raise UsageError(
            "xlt eval", "takes --file or --task", "give one of the two, or --split of a checkpoint"
        )
    if options.file:
        bad: list[str] = []
        given = dialect.said(options.encoding, options.delimiter)
        told = options.language_column
        if not told and labelled.has_column(options.file, LANGUAGE, given):
            told = LANGUAGE
        columns = labelled.Columns(options.text, options.label, options.pair, options.id, told)
        everywhere = bool(options.language_column)
        spoken = options.language or source
        rows = labelled.read(options.file, columns, spoken, bad, marked=everywhere, given=given)
        if options.skip_bad:
            for problem in bad:
                print(f"left out: {problem}", file=sys.stderr)
        else:
            refuse(options.file, bad, "mend them, or leave them out with --skip-bad")
    else:
        rows = task_rows(options, model)
    there = sorted({row.language for row in rows})
    if absent := [language for language in options.languages if language not in there]:
        raise UsageError(
            f"--languages {','.join(absent)}", f"the rows are in {', '.join(there)}", "leave it out"
        )
    return [row for row in rows if not options.languages or row.language in options.languages]


def task_rows(options: argparse.Namespace, model: Path) -> list[Any]:
    from xlt_serve.files.labelled import Labelled

    (data,) = training_modules("data")
    task, split = task_of(options, model), options.split or "dev"
    examples = data.opened(task)
    there = examples.languages(split)
    if not there:
        own = task.name == "files"
        raise UsageError(
            f"the config of {model}" if own else task.data,
            f"names no {split} files" if own else f"has no {split} files of {task.name}",
            "give --file FILE" if own else "check the folder",
        )
    return [
        Labelled(each.text, each.label, each.language, each.pair, each.id)
        for language in options.languages or there
        for each in examples.load(split, language)
    ]


def task_of(options: argparse.Namespace, model: Path) -> Any:
    """The task by name; without a name, or where it stands for files of one's own, that which a
    checkpoint was trained on."""
    (data,) = training_modules("data")
    if options.task and options.task not in OWN:
        if not options.data:
            raise UsageError(f"--task {options.task}", "needs its data", "give --data DIR")
        return data.TaskConfig(options.task, options.data)
    asked = f"--task {options.task}" if options.task else f"--split {options.split}"
    if not is_checkpoint(model):
        raise UsageError(
            asked, f"{model} is a bundle, which knows no files of its training", "give --file FILE"
        )
    (checkpoints,) = training_modules("loop.model")
    found = data.recorded(checkpoints.described(model).config.get("task", {"name": ""}))
    if not found.name or (options.task and found.name != options.task):
        trained_on = f"was trained on {found.name}" if found.name else "does not say its files"
        raise UsageError(asked, f"{model} {trained_on}", "give --file FILE")
    return replace(found, data=options.data) if options.data else found


@dataclass(frozen=True)
class Judged:
    """What one model said."""

    name: str
    version: str
    source: str
    answers: Mapping[str, Any]


def is_checkpoint(place: Path) -> bool:
    """By the file that ``xlt_training.loop.model`` writes, which can't be asked without torch."""
    return (place / "xlt.json").is_file()


def source_of(place: Path) -> str:
    """The language that a model was trained on."""
    if is_checkpoint(place):
        (model,) = training_modules("loop.model")
        language: str = model.described(place).source_language
        return language
    return bundles.load(place).manifest.source_language


def judged(
    place: Path, rows: Sequence[Any], settings: Settings, options: argparse.Namespace
) -> Judged:
    from tqdm import tqdm

    from xlt_serve.evaluation import judging

    if is_checkpoint(place):
        if settings.mode != "plain":
            raise UsageError(
                f"--mode {settings.mode}", f"{place} is a checkpoint", "export it, judge the bundle"
            )
        evaluate, model = training_modules("loop.evaluate", "loop.model")
        network, description = model.load(place)
        if options.max_length:
            network.encoding.max_length = min(options.max_length, network.encoding.max_length)
        judging.refuse_others(rows, description.labels, description.pair, place)
        found = evaluate.answers_of(network, rows, settings)
        return Judged(str(place), "", description.source_language, found)
    from xlt_serve.classifier import load
    from xlt_serve.text import synonyms

    classifier = load(
        place, translators=options.translators, synonyms=synonyms.files(options.tables)
    )
    manifest = classifier.bundle.manifest
    with tqdm(total=len(rows), unit=" rows", delay=2, disable=not sys.stderr.isatty()) as progress:
        found = judging.judged(classifier, rows, settings, progress.update)
    return Judged(manifest.name, manifest.version, manifest.source_language, found)
