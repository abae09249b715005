"""What export is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypedDict

from xlt_serve.errors import UsageError
from xlt_serve.files.labelled import Columns
from xlt_training.exporting.brought_text import Rows

AGREEMENT = 0.99


@dataclass(frozen=True)
class Order:
    """What to make of a checkpoint.

    - ``graphs``: beside the plain one; by default those that the training methods bring.
    - ``data``: the task's folder, of files of one's own the dev rows (a file, a folder, a pattern), by
      default those of training if they are still there. The gate compares
      labels on its text in each of ``languages`` (by default all), and calibrates.
    - ``agreement``: the least share of a language's texts that must get torch's label.
    - ``exclude``: a regular expression; layers whose name it matches stay fp32.
    - ``trim_vocab``: languages whose pieces of the vocabulary stay.
    - ``target_error``: abstain so that at most this share of the answers is wrong on dev.
    - ``synonyms``: LANGUAGE=FILE, tables that go into the bundle.
    - ``file`` with its columns ``text``, ``label``, ``pair``, ``language_column``: the same of a brought
      classifier; without ``label`` it is not calibrated. By default, sentences that ship.
    - ``source_language``: what a brought classifier was fitted on; ``pairs``: it reads two texts.
    - ``vector``: the plain graph also gives the text's vector; ``projection``: through the linear map
      in this safetensors file (``weight``, ``bias``).
    """

    name: str = ""
    precision: str = "fp32"
    graphs: Sequence[str] = ()
    data: str = ""
    notes: str = ""
    agreement: float = AGREEMENT
    languages: Sequence[str] = ()
    exclude: str = ""
    trim_vocab: Sequence[str] = ()
    tensorrt: bool = False
    target_error: float | None = None
    synonyms: Sequence[str] = ()
    vector: bool = False
    projection: str = ""
    file: str = ""
    text: str = "text"
    label: str = ""
    pair: str = ""
    language_column: str = ""
    source_language: str = ""
    pairs: bool = False

    @property
    def rows(self) -> Rows:
        columns = Columns(self.text, self.label, self.pair, "", self.language_column)
        return Rows(self.file, columns)


class OrderKeywords(TypedDict, total=False):
    """The fields of ``Order``, for type checkers and editors; a test compares them."""

    name: str
    precision: Literal["fp32", "fp16", "int8", "auto"]
    graphs: Sequence[str]
    data: str
    notes: str
    agreement: float
    languages: Sequence[str]
    exclude: str
    trim_vocab: Sequence[str]
    tensorrt: bool
    target_error: float | None
    synonyms: Sequence[str]
    vector: bool
    projection: str
    file: str
    text: str
    label: str
    pair: str
    language_column: str
    source_language: str
    pairs: bool


def refuse_unknown_options(given: Iterable[str]) -> None:
    """What no type checker has seen."""
    known = [each.name for each in fields(Order)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known)}"
            raise UsageError(f"{name}=", "is no option of export", remedy)
