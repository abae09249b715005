"""The same tasks from the Hugging Face hub, by ``datasets``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xlt_serve.errors import DataError
from xlt_serve.files.labelled import Columns, labelled
from xlt_serve.files.rows import refuse
from xlt_training.data.own_files import example_of, stratified
from xlt_training.loop.types import Example


@dataclass(frozen=True)
class HubSource:
    """``columns``: our name → theirs; ``configs``: language → config name, the code itself if absent;
    ``splits``: our split → theirs, where it is not train / validation / test."""

    name: str
    columns: dict[str, str]
    configs: dict[str, str] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)


class NoSplit(DataError):
    """A dataset has no split of this name."""


def hub_rows(
    source: HubSource, split: str, language: str, load: Callable[..., Any] | None = None
) -> list[dict[str, str]]:
    """Rows under our column names, class numbers put back into their names. What a row has not is empty:
    a null, and the class -1, which stands for no label."""
    load = load or _load_dataset()
    theirs = source.splits.get(split, {"dev": "validation"}.get(split, split))
    config = source.configs.get(language, language)
    try:
        dataset = load(source.name, config, split=theirs)
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("Unknown split"):
            raise NoSplit(
                f"{source.name} ({config})",
                f"has no split {theirs!r} ({error})",
                f'say what it is called: task.splits.{split} = "…"',
            ) from None  # datasets wraps network errors in classes of several libraries
        raise DataError(
            f"{source.name} ({config}, {theirs})",
            f"can't be loaded from the hub ({type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]})",
            "check the network, or give a folder with the task's files",
        ) from None
    for column in source.columns.values():
        if column not in dataset.column_names:
            raise DataError(source.name, f"has no column {column!r}: {dataset.column_names}")
    names = getattr(dataset.features[source.columns["label"]], "names", None)
    rows = []
    for record in dataset:
        row = {
            ours: "" if record[column] is None else str(record[column])
            for ours, column in source.columns.items()
        }
        if names is not None:
            number = record[source.columns["label"]]
            row["label"] = "" if number is None or number < 0 else names[number]
        rows.append(row)
    return rows


@dataclass
class OwnHub:
    """A dataset of the hub that no task names; rows are held out, and bad ones left out, as of files.

    With a column ``language`` each config's rows are of the languages that they say; else all are of that
    language which the config stands for."""

    source: HubSource
    trained: Sequence[str] = ()
    skip_bad: bool = False
    held_out: float = 0.15
    reader: Callable[..., Any] | None = None
    _read: dict[tuple[str, str], list[Example] | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.source.name

    def languages(self, split: str) -> list[str]:
        if "language" not in self.source.columns:
            return sorted(self.source.configs)
        found = {e.language for key in self.source.configs for e in self._rows(split, key) or []}
        if split == "dev":
            found.update(self.languages("train"))  # held out, or stand in
        return sorted(found)

    def load(self, split: str, language: str) -> list[Example]:
        rows = self._of(split, language)
        if split in ("train", "dev") and not self._of("dev", language):
            rows = self._of("train", language)
            if language in self.trained:
                kept, held = stratified(rows, self.held_out)
                rows = kept if split == "train" else held
        if not rows:
            raise DataError(
                self.name,
                f"has no {split} rows in {language!r}",
                "check task.configs, task.splits and task.language",
            )
        return rows

    def _of(self, split: str, language: str) -> list[Example]:
        if "language" not in self.source.columns:
            return self._rows(split, language) or []
        every = (e for key in self.source.configs for e in self._rows(split, key) or [])
        return [example for example in every if example.language == language]

    def _rows(self, split: str, key: str) -> list[Example] | None:
        """The rows of a config; None where it has no dev split and nobody said what that is called."""
        if (split, key) not in self._read:
            try:
                self._read[split, key] = self._checked(split, key)
            except NoSplit:
                if split != "dev" or "dev" in self.source.splits:
                    raise
                self._read[split, key] = None
        return self._read[split, key]

    def _checked(self, split: str, key: str) -> list[Example]:
        rows = hub_rows(self.source, split, key, self.reader)
        bad: list[str] = []
        columns = Columns(**{name: name for name in self.source.columns})
        place = f"{self.name} {split} {key}"
        found = labelled([*enumerate(rows, 1)], columns, key, place, bad)
        if not self.skip_bad:
            refuse(place, bad, "leave them out: task.skip_bad=true")
        for problem in bad:
            print(f"left out: {place} {problem}", file=sys.stderr)
        return [example_of(row) for row in found]


def _load_dataset() -> Callable[..., Any]:
    from datasets import load_dataset

    found: Callable[..., Any] = load_dataset
    return found
