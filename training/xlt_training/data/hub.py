"""The same tasks from the Hugging Face hub, by ``datasets``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from xlt_serve.errors import DataError
from xlt_serve.files.labelled import Columns, labelled
from xlt_serve.files.rows import refuse
from xlt_training.data.own_files import example_of
from xlt_training.loop.types import Example


@dataclass(frozen=True)
class HubSource:
    """``columns``: our name → theirs; ``configs``: language → config name, the code itself if absent;
    ``splits``: our split → theirs, where it is not train / validation / test."""

    name: str
    columns: dict[str, str]
    configs: dict[str, str] = field(default_factory=dict)
    splits: dict[str, str] = field(default_factory=dict)


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
    except Exception as error:  # datasets wraps network errors in classes of several libraries
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


@dataclass(frozen=True)
class OwnHub:
    """A dataset of the hub that no task names."""

    source: HubSource

    @property
    def name(self) -> str:
        return self.source.name

    def languages(self, split: str) -> list[str]:
        return sorted(self.source.configs)

    def load(self, split: str, language: str) -> list[Example]:
        rows = hub_rows(self.source, split, language)
        bad: list[str] = []
        columns = Columns(**{name: name for name in self.source.columns})
        found = labelled([*enumerate(rows, 1)], columns, language, self.name, bad)
        refuse(self.name, bad)
        return [example_of(row) for row in found]


def _load_dataset() -> Callable[..., Any]:
    from datasets import load_dataset

    found: Callable[..., Any] = load_dataset
    return found
