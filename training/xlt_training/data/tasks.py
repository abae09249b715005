"""The tasks: where their files lie, what their columns mean, and what they are called on the hub.

``data`` is a folder laid out like the project's data (``sib200/train-en.tsv``, …), or "hub".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from xlt_serve.errors import DataError, UsageError
from xlt_serve.files.labelled import Columns, labelled
from xlt_serve.files.rows import read_rows, refuse
from xlt_training.data.hub import HubSource, hub_rows
from xlt_training.data.own_files import example_of
from xlt_training.loop.types import Example


@dataclass(frozen=True)
class Task:
    """``files``: split → pattern under the data folder; "#odd" or "#even" take every other row.
    ``languages``: those it is about, all that have a file if none are named. ``placeholder`` stands for
    a text that was not translated: where it is judged on, its row is left out in every language."""

    label: str
    text: str
    pair: str = ""
    id: str = ""
    languages: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    hub: HubSource | None = None
    placeholder: str = ""


TASKS: dict[str, Task] = {
    "sib200": Task(
        label="label",
        text="text",
        id="id",
        files={
            "train": "sib200/train-{language}.tsv",
            "dev": "sib200/dev-{language}.tsv",
            "test": "sib200/test-{language}.tsv",
        },
        hub=HubSource(
            "Davlan/sib200",
            columns={"label": "category", "text": "text", "id": "index_id"},
            configs={
                "ar": "arb_Arab",
                "bg": "bul_Cyrl",
                "de": "deu_Latn",
                "el": "ell_Grek",
                "en": "eng_Latn",
                "es": "spa_Latn",
                "fr": "fra_Latn",
                "hi": "hin_Deva",
                "it": "ita_Latn",
                "ja": "jpn_Jpan",
                "ko": "kor_Hang",
                "nl": "nld_Latn",
                "pl": "pol_Latn",
                "pt": "por_Latn",
                "ru": "rus_Cyrl",
                "sw": "swh_Latn",
                "th": "tha_Thai",
                "tr": "tur_Latn",
                "ur": "urd_Arab",
                "vi": "vie_Latn",
                "zh": "zho_Hans",
            },
        ),
    ),
    "xsid": Task(
        label="intent",
        text="text",
        files={
            "train": "xsid/train-{language}.tsv",
            "dev": "xsid/valid-{language}.tsv",
            "test": "xsid/test-{language}.tsv",
        },
    ),
    "sentiment": Task(
        label="label",
        text="text",
        files={
            "train": "sentiment/train-{language}.tsv",
            "dev": "sentiment/dev-{language}.tsv",
            "test": "sentiment/test-{language}.tsv",
        },
        hub=HubSource(
            "cardiffnlp/tweet_sentiment_multilingual",
            columns={"label": "label", "text": "text"},
            configs={
                "ar": "arabic",
                "de": "german",
                "en": "english",
                "es": "spanish",
                "fr": "french",
                "hi": "hindi",
                "it": "italian",
                "pt": "portuguese",
            },
        ),
    ),
    # XNLI's own train set is MultiNLI; where it is too large, three smaller sets stand in for it.
    "xnli": Task(
        label="label",
        text="premise",
        pair="hypothesis",
        files={
            "train": "nli/train-{language}.tsv",
            "dev": "xnli/dev-{language}.tsv#even",
            "test": "xnli/test-{language}.tsv",
        },
        hub=HubSource(
            "facebook/xnli",
            columns={"label": "label", "text": "premise", "pair": "hypothesis"},
            configs={
                lg: lg
                for lg in [
                    "ar",
                    "bg",
                    "de",
                    "el",
                    "en",
                    "es",
                    "fr",
                    "hi",
                    "ru",
                    "sw",
                    "th",
                    "tr",
                    "ur",
                    "vi",
                    "zh",
                ]
            },
        ),
    ),
    # English NLI: the same train set, judged on English alone.
    "nli": Task(
        label="label",
        text="premise",
        pair="hypothesis",
        languages=("en",),
        files={
            "train": "nli/train-{language}.tsv",
            "dev": "xnli/dev-{language}.tsv#even",
            "test": "xnli/test-{language}.tsv",
        },
        hub=HubSource(
            "nyu-mll/multi_nli",
            columns={"label": "label", "text": "premise", "pair": "hypothesis"},
            configs={"en": "default"},
            splits={"dev": "validation_matched"},
        ),
    ),
    # Without PAWS-X's train set, the odd rows of its dev set are trained on, the even ones reported.
    "pawsx": Task(
        label="label",
        text="sentence1",
        pair="sentence2",
        files={
            "train": "pawsx/dev-{language}.tsv#odd",
            "dev": "pawsx/dev-{language}.tsv#even",
            "test": "pawsx/test-{language}.tsv",
        },
        hub=HubSource(
            "google-research-datasets/paws-x",
            columns={"label": "label", "text": "sentence1", "pair": "sentence2", "id": "id"},
            configs={lg: lg for lg in ("de", "en", "es", "fr", "ja", "ko", "zh")},
        ),
        placeholder="NS",
    ),
}


@dataclass(frozen=True)
class NamedTask:
    """One of ``TASKS`` in a data folder, or on the hub."""

    name: str
    data: str

    def languages(self, split: str) -> list[str]:
        return languages(self.name, self.data, split)

    def load(self, split: str, language: str) -> list[Example]:
        return load_split(self.name, self.data, split, language)


def load_split(task: str, data: str | Path, split: str, language: str) -> list[Example]:
    """The examples of one split in one language."""
    spec = named(task)
    rows, columns = _rows(spec, task, data, split, language)
    if spec.placeholder and split != "train":
        left_out = {
            number
            for other in languages(task, data, split)
            for number in _untranslated(spec, task, str(data), split, other)
        }
        rows = [row for row in rows if row[columns.id] not in left_out]
    return to_examples(rows, columns, language, f"{task} {split} {language}")


def _rows(
    spec: Task, task: str, data: str | Path, split: str, language: str
) -> tuple[list[dict[str, str]], Columns]:
    """The rows of one split in one language, and what their columns mean."""
    if str(data) == "hub":
        if spec.hub is None:
            raise UsageError(task, "is not on the hub", "give the folder of its files as data")
        rows = hub_rows(spec.hub, split, language)
        return rows, Columns(**{name: name for name in spec.hub.columns})
    if split not in spec.files:
        raise UsageError(split, f"{task} has the splits {', '.join(spec.files)}")
    path, _, half = spec.files[split].format(language=language).partition("#")
    file = Path(data) / path
    if not file.exists():
        or_hub = " or hub" if spec.hub else ""
        raise DataError(
            file, "is not there", f"say where {task}'s files are: task.data=FOLDER{or_hub}"
        )
    rows = read_rows(file)
    columns = Columns(spec.text, spec.label, spec.pair, spec.id)
    if half or spec.placeholder:
        # Translations share a row's number: it is given before rows are left out.
        rows = [row | {"row": str(number)} for number, row in enumerate(rows)]
        rows = _half(rows, half, (spec.text, spec.pair)) if half else rows
        columns = replace(columns, id="row")
    return rows, columns


def _untranslated(spec: Task, task: str, data: str, split: str, language: str) -> list[str]:
    """The ids of rows in which one language has the placeholder."""
    rows, columns = _rows(spec, task, data, split, language)
    return [
        row[columns.id]
        for row in rows
        if spec.placeholder in (row[columns.text], row[columns.pair])
    ]


def _half(rows: list[dict[str, str]], half: str, columns: tuple[str, str]) -> list[dict[str, str]]:
    """The even rows, or those odd ones that share no text with them."""
    even = rows[0::2]
    if half == "even":
        return even
    reported = {row[column] for row in even for column in columns}
    return [row for row in rows[1::2] if not reported & {row[column] for column in columns}]


def to_examples(
    rows: list[dict[str, str]], columns: Columns, language: str, source: str
) -> list[Example]:
    """Rows as examples; all rows without a text or label are named in one error."""
    bad: list[str] = []
    found = labelled([*enumerate(rows, 1)], columns, language, source, bad)
    refuse(source, bad)
    if not found:
        raise DataError(source, "has no rows")
    return [example_of(row) for row in found]


def languages(task: str, data: str | Path, split: str) -> list[str]:
    """The languages that a split has, in alphabetical order."""
    spec = named(task)
    if str(data) == "hub":
        return sorted(spec.hub.configs) if spec.hub else []
    pattern = spec.files.get(split, "").partition("#")[0]
    before, _, after = pattern.partition("{language}")
    found = sorted(Path(data).glob(f"{before}*{after}")) if pattern else []
    prefix = Path(before).name
    there = [path.name.removeprefix(prefix).removesuffix(after) for path in found]
    return [language for language in there if not spec.languages or language in spec.languages]


def named(task: str) -> Task:
    if task not in TASKS:
        raise UsageError(task, f"is not a task; known: {', '.join(TASKS)}")
    return TASKS[task]
