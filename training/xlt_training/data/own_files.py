"""Files of one's own: one for all languages, or one for each."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files import codecs
from xlt_training.data.rows import Row, numbered_rows, refuse
from xlt_training.loop.types import Example

Place = str | Mapping[str, str]
"""A file; a pattern with ``{language}``; a folder with a file for each language; or language → file."""


@dataclass(frozen=True)
class Columns:
    """What the columns are called; "" for what there is not."""

    text: str = "text"
    label: str = "label"
    pair: str = ""
    id: str = ""
    language: str = ""

    def named(self) -> dict[str, str]:
        return {role: name for role, name in vars(self).items() if name}


@dataclass
class OwnFiles:
    """``held_out``: without dev rows in the source language, the share of its train rows that are
    taken for them."""

    places: Mapping[str, Place]
    columns: Columns
    source: str
    skip_bad: bool = False
    held_out: float = 0.15
    bad: list[str] = field(default_factory=list)
    _read: dict[str, dict[str, list[Example]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "files"

    def languages(self, split: str) -> list[str]:
        found = set(self._given(split))
        if split == "dev":
            found.add(self.source)  # given or held out
        return sorted(found)

    def load(self, split: str, language: str) -> list[Example]:
        train = self._given("train").get(self.source, [])
        if language == self.source and split in ("train", "dev") and self._holds_out:
            kept, held = stratified(train, self.held_out)
            return kept if split == "train" else held
        there = self._given(split)
        if language not in there:
            have = ", ".join(sorted(there)) or "none"
            raise UsageError(
                f"task.{split}", f"has no rows in {language!r}; it has: {have}", "name its file"
            )
        return there[language]

    @property
    def _holds_out(self) -> bool:
        return self.source not in self._given("dev")

    def _given(self, split: str) -> dict[str, list[Example]]:
        """The rows of a split by language, as the files have them."""
        if split not in self._read:
            out: dict[str, list[Example]] = defaultdict(list)
            for language, file in files_of(self.places.get(split, "")).items():
                for example in self._examples(file, language or self.source):
                    out[example.language].append(example)
            self._read[split] = dict(out)
        return self._read[split]

    def _examples(self, file: Path, language: str) -> list[Example]:
        problems: list[str] = []
        rows = numbered_rows(file, problems)
        found = examples(rows, self.columns, language, file, problems)
        if self.skip_bad:
            self.bad += [f"{file} {problem}" for problem in problems]
        else:
            refuse(file, problems)
        if not found:
            raise DataError(file, "has no rows")
        return found


def files_of(place: Place) -> dict[str, Path]:
    """Language → file; "" stands for one file of all languages."""
    if isinstance(place, Mapping):
        return {language: Path(file) for language, file in place.items()}
    if not place:
        return {}
    if "{language}" in place:
        return _by_pattern(place)
    if Path(place).is_dir():
        return _in_folder(Path(place))
    return {"": Path(place)}


def _by_pattern(pattern: str) -> dict[str, Path]:
    before, _, after = pattern.partition("{language}")
    folder = Path(before + "x").parent
    start = before.rpartition("/")[2]
    found = {
        file.name.removeprefix(start).removesuffix(after): file
        for file in sorted(folder.glob(f"{start}*{after}"))
    }
    if not found:
        raise DataError(pattern, "matches no file", "check the folder and the ending")
    return found


def _in_folder(folder: Path) -> dict[str, Path]:
    """Each file by the last part of its name: ``de.csv``, ``dev-de.csv``, ``dev_de.csv.gz``."""
    out: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(".") or codecs.told_by(file.name)[0] in (None, "txt"):
            continue
        language = file.name.partition(".")[0].replace("_", "-").rpartition("-")[2]
        if language in out:
            raise DataError(
                folder, f"has two files of {language!r}: {out[language].name} and {file.name}"
            )
        out[language] = file
    if not out:
        raise DataError(folder, "has no file of rows", "name them as dev-de.csv")
    return out


def examples(
    rows: Sequence[tuple[int, Row]],
    columns: Columns,
    language: str,
    place: object,
    bad: list[str],
) -> list[Example]:
    """Numbered rows as examples; a missing column is an error that names those there are, an empty text or
    label goes into ``bad``."""
    for role, name in columns.named().items():
        if rows and name not in rows[0][1]:
            there = ", ".join(rows[0][1])
            raise DataError(
                place, f"has no column {name!r} (for {role}); it has: {there}", "name another"
            )
    out = []
    for number, row in rows:
        needed = (columns.text, columns.label, *filter(None, (columns.pair, columns.language)))
        if empty := [name for name in needed if not row[name].strip()]:
            bad.append(f"row {number}: has an empty {empty[0]}")
            continue
        out.append(
            Example(
                text=row[columns.text],
                pair=row[columns.pair] if columns.pair else None,
                label=row[columns.label],
                language=row[columns.language].strip() if columns.language else language,
                id=row[columns.id] if columns.id else str(number - 1),
            )
        )
    return out


def stratified(whole: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """(kept, held out): of each label the same share of texts, at least one where it has two.

    Which ones hangs on the texts alone, so that a new row moves few others; all rows of a text go the same
    way, so that none is trained on and judged.
    """
    texts: dict[str, dict[tuple[str, ...], None]] = defaultdict(dict)
    first: dict[tuple[str, ...], str] = {}
    for example in whole:
        label = first.setdefault(example.texts(), example.label)
        texts[label][example.texts()] = None
    held: set[tuple[str, ...]] = set()
    for mine in texts.values():
        count = round(share * len(mine))
        if share and len(mine) > 1:
            count = max(1, count)
        held.update(sorted(mine, key=_digest)[:count])
    return (
        [example for example in whole if example.texts() not in held],
        [example for example in whole if example.texts() in held],
    )


def _digest(texts: tuple[str, ...]) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).digest()
