"""``[task]`` of a config: which labelled data, and where it lies."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from xlt_serve.files.dialect import said
from xlt_serve.files.labelled import Columns, Place
from xlt_training.data.hub import HubSource, OwnHub
from xlt_training.data.own_files import OwnFiles
from xlt_training.data.tasks import TASKS, NamedTask
from xlt_training.loop.types import Example

OWN = ("files", "hub")
"""Names that stand for data of one's own."""


class Splits(Protocol):
    """Labelled examples, by split (train, dev, test) and language."""

    @property
    def name(self) -> str: ...

    def languages(self, split: str) -> list[str]: ...

    def load(self, split: str, language: str) -> list[Example]: ...


@dataclass
class TaskConfig:
    """A task by name (see ``xlt train --help``); ``name = "files"`` with files of one's own, or
    ``name = "hub"`` with a dataset of the Hugging Face hub. Paths are relative to where the command runs.

    ``train``, ``dev``, ``test``: a file (CSV, TSV, JSONL, Parquet), a pattern with ``{language}``, a folder
    with a file for each language, or a table ``dev.de = "…"``. Without ``dev`` in a language that is
    trained on a share of its train rows is held out; without any, train rows of others are judged on.
    """

    name: str  # a task that ships, or "files" or "hub" for data of one's own
    data: str = ""  # folder of the task's files, "hub" for the hub; of name = "hub" the dataset
    source: str = "en"  # language of the training labels
    translated_from: str = ""  # the language whose train rows are read, in translation
    supervised: list[str] = field(default_factory=list)  # more languages whose labels are used
    train: str | dict[str, str] = ""  # labelled rows: a file, a folder, a pattern, a table
    dev: str | dict[str, str] = ""  # rows to judge each epoch by, and each language
    test: str | dict[str, str] = ""  # rows that training never looks at
    text: str = "text"  # column of the text
    label: str = "label"  # column of the label
    pair: str = ""  # column of the second text, where a label is of two
    id: str = ""  # column that the translations of a row share
    language: str = ""  # column of the language, where a file has several
    configs: dict[str, str] = field(default_factory=dict)  # of name = "hub": language → config
    splits: dict[str, str] = field(default_factory=dict)  # of name = "hub": our split → theirs
    held_out: float = 0.15  # share of the train rows of a trained language without dev rows
    fold: str = ""  # "0/2": leave out the first of two parts of the train rows, chosen by their ids
    encoding: str = ""  # of files of one's own, as "cp1252"; "": detected
    delimiter: str = ""  # of CSV, as ";"; "": detected
    skip_bad: bool = False  # leave out rows that can't be read, or have no text or label
    # Word lists of two columns: a folder of en-de.tsv, …, a pattern or table as of ``dev``; "": in ``data``.
    lexicons: str | dict[str, str] = ""
    synonyms: str = ""  # a table, JSON or TSV; "": SOURCE-synonyms.json among the lexicons
    translations: str = ""  # folder of en-de.train.tsv, …; "": that in ``data``

    def problems(self) -> list[str]:
        if self.name == "files" and not self.train:
            return ["task.train is required where task.name is 'files'"]
        if self.name == "hub" and (not self.data or not self.configs):
            return [
                "task.data (a dataset's name) and task.configs are required where task.name is 'hub'"
            ]
        if self.name in TASKS and not self.data:
            return ["task.data is required: a folder with the task's files, or 'hub'"]
        if wrong := said(self.encoding, self.delimiter).problems():
            return [
                f"task.{name} = {getattr(self, name)!r} {rule}; {remedy}"
                for name, (rule, remedy) in wrong.items()
            ]
        if self.name != "files" and (self.encoding or self.delimiter):
            return ["task.encoding and task.delimiter are for files of one's own: name = 'files'"]
        if absent := list(self._absent()):
            return absent
        if self.fold and not _FOLD.fullmatch(self.fold):
            return [f"task.fold is a part of so many, as '0/2', was: {self.fold!r}"]
        if not 0 < self.held_out < 1:
            return [f"task.held_out is a share, in (0, 1), was: {self.held_out}"]
        return []

    def _absent(self) -> Iterator[str]:
        """Named files of words that are not there."""
        named = {"synonyms": self.synonyms}
        if isinstance(self.lexicons, str):
            named["lexicons"] = "" if "{language}" in self.lexicons else self.lexicons
        else:
            named |= {f"lexicons.{language}": file for language, file in self.lexicons.items()}
        for key, place in named.items():
            if place and not Path(place).exists():
                yield f"task.{key} = {place!r} is not there"

    @property
    def lexicon_place(self) -> Place:
        return self.lexicons or str(Path(self.data) / "lexicons")

    @property
    def translation_folder(self) -> Path:
        return Path(self.translations) if self.translations else Path(self.data) / self.name / "mt"


_FOLD = re.compile(r"\d+/[1-9]\d*")


def left_out(task: TaskConfig, example: Example) -> bool:
    """Whether ``fold`` keeps it out of training; translations of a row share its id, and its fate."""
    if not task.fold:
        return False
    part, of = map(int, task.fold.split("/"))
    return zlib.crc32(example.id.encode()) % of == part


def opened(task: TaskConfig) -> Splits:
    """The examples that a config means; nothing is read yet."""
    if task.name == "files":
        places = {"train": task.train, "dev": task.dev, "test": task.test}
        columns = Columns(task.text, task.label, task.pair, task.id, task.language)
        return OwnFiles(
            places,
            columns,
            task.source,
            task.supervised,
            task.skip_bad,
            task.held_out,
            said(task.encoding, task.delimiter),
        )
    if task.name == "hub":
        roles = {"text": task.text, "label": task.label, "pair": task.pair, "id": task.id}
        roles["language"] = task.language
        named = {role: column for role, column in roles.items() if column}
        source = HubSource(task.data, named, task.configs, task.splits)
        return OwnHub(source, (task.source, *task.supervised), task.skip_bad, task.held_out)
    return NamedTask(task.name, task.data)


def recorded(table: Mapping[str, Any]) -> TaskConfig:
    """The ``[task]`` that a checkpoint was trained by, also of an earlier version."""
    known = {each.name for each in fields(TaskConfig)}
    return TaskConfig(**{name: value for name, value in table.items() if name in known})
