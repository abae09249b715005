"""Files of one's own, with rows held out where there are no dev rows."""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xlt_serve.errors import UsageError
from xlt_serve.files import formats, labelled
from xlt_serve.files.dialect import UNSAID, Dialect
from xlt_serve.files.labelled import Columns, Labelled, Place, files_of
from xlt_serve.files.rows import refuse, source_of
from xlt_training.loop.types import Example


@dataclass
class OwnFiles:
    """``held_out``: of a language that is trained on (``source`` and ``supervised`` are) and has no dev
    rows, the share of its train rows that are taken for them. Without any dev rows, the train rows of
    other languages stand in for those."""

    places: Mapping[str, Place]
    columns: Columns
    source: str
    supervised: Sequence[str] = ()
    skip_bad: bool = False
    held_out: float = 0.15
    dialect: Dialect = UNSAID
    _read: dict[str, dict[str, list[Example]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "files"

    def languages(self, split: str) -> list[str]:
        found = set(self._given(split))
        if split == "dev":
            found.add(self.source)  # given or held out
            if missing := {*self.supervised} - found:  # else the train files may be gone by now
                found |= missing & {*self._given("train")}
        return sorted(found)

    def load(self, split: str, language: str) -> list[Example]:
        if split in ("train", "dev") and self._holds_out(language):
            kept, held = stratified(self._given("train").get(language, []), self.held_out)
            return kept if split == "train" else held
        there = self._given(split)
        if language not in there:
            have = ", ".join(sorted(there)) or "none"
            raise UsageError(
                f"task.{split}", f"has no rows in {language!r}; it has: {have}", "name its file"
            )
        return there[language]

    def _holds_out(self, language: str) -> bool:
        trained = (self.source, *self.supervised)
        if language not in trained or language in self._given("dev"):
            return False
        return language == self.source or language in self._given("train")

    def _given(self, split: str) -> dict[str, list[Example]]:
        """The rows of a split by language, as the files have them."""
        if split == "dev" and not self.places.get("dev"):
            trained = (self.source, *self.supervised)
            return {lg: rows for lg, rows in self._given("train").items() if lg not in trained}
        if split not in self._read:
            self._check_language()
            bad: list[str] = []
            place = self.places.get(split, "")
            found = labelled.read(
                place, self.columns, self.source, bad, marked=False, given=self.dialect
            )
            if not self.skip_bad:
                remedy = "mend them, or leave them out: task.skip_bad=true"
                refuse(f"task.{split}", bad, remedy)
            for problem in bad:
                print(f"left out: {problem}", file=sys.stderr)
            out: dict[str, list[Example]] = defaultdict(list)
            for row in found:
                out[row.language].append(example_of(row))
            self._read[split] = dict(out)
        return self._read[split]

    def _check_language(self) -> None:
        """Not every file needs the column of languages; if none has it, its name is wrong."""
        name = self.columns.language
        files = [file for place in self.places.values() for file in files_of(place).values()]
        files = [file for file in files if file.exists()]  # who reads one that is not is told
        if name and not any(
            name in formats.columns(source_of(file, self.dialect)) for file in files
        ):
            raise UsageError(f"task.language={name}", "is a column of no file", "name another")


def example_of(row: Labelled) -> Example:
    return Example(row.text, row.label, row.language, row.pair, row.id)


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
            count = min(max(1, count), len(mine) - 1)
        held.update(sorted(mine, key=_digest)[:count])
    return (
        [example for example in whole if example.texts() not in held],
        [example for example in whole if example.texts() in held],
    )


def _digest(texts: tuple[str, ...]) -> bytes:
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).digest()
