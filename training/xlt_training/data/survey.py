"""What a file of labelled rows looks like, before anybody trains on it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from xlt_serve.errors import UsageError
from xlt_serve.files.labelled import Columns, Labelled
from xlt_serve.text.language import detect

NAMES = {
    "text": ("text", "body", "sentence", "review", "content", "message", "utterance", "comment"),
    "label": ("label", "category", "class", "topic", "intent", "sentiment", "target", "tag"),
    "language": ("language", "lang", "locale"),
}
"""What columns are usually called."""
LONG = 600
"""Characters from which on a text may be over 128 tokens."""
FEW = 8
"""Rows of a label below which it is hardly learnt."""
SHOWN = 3
LOOKED_AT = 500
"""Texts whose language is detected."""


@dataclass(frozen=True)
class Survey:
    """Of rows that can be read. ``conflicts``: texts with several labels; ``leaks``: texts of the dev rows
    that are trained on; ``test_leaks``: of the test rows, that are trained on or among the dev rows;
    ``strange``: labels of the dev rows that no train row has."""

    rows: int
    labels: dict[str, int]
    languages: dict[str, int]
    duplicates: int
    conflicts: list[str]
    long: int
    leaks: list[str] = field(default_factory=list)
    test_leaks: list[str] = field(default_factory=list)
    strange: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For a reader: counts first, then what to look at."""
        counts = ", ".join(f"{label} {count}" for label, count in self.labels.items())
        languages = ", ".join(f"{language} {count}" for language, count in self.languages.items())
        out = [
            f"rows        {self.rows:,}",
            f"labels      {counts}",
            f"languages   {languages}",
        ]
        if few := [label for label, count in self.labels.items() if count < FEW]:
            out.append(f"! fewer than {FEW} rows of a label: {', '.join(few)}")
        if len(self.labels) < 2:
            out.append("! a classifier needs two labels or more")
        if self.duplicates:
            out.append(f"! {self.duplicates} rows repeat another (same text, same label)")
        if self.conflicts:
            out.append(
                f"! {len(self.conflicts)} texts have several labels: {_some(self.conflicts)}"
            )
        if self.long:
            out.append(f"! {self.long} texts of over {LONG} characters: training reads 128 tokens")
        if self.leaks:
            out.append(f"! {len(self.leaks)} dev texts are trained on: {_some(self.leaks)}")
        if self.test_leaks:
            told = f"! {len(self.test_leaks)} test texts are trained on or dev texts"
            out.append(f"{told}: {_some(self.test_leaks)}")
        if self.strange:
            told = ", ".join(f"{label} {count}" for label, count in self.strange.items())
            out.append(f"! dev labels that the train rows lack: {told}")
        return out


def survey(
    train: Sequence[Labelled],
    dev: Sequence[Labelled] = (),
    test: Sequence[Labelled] = (),
    told: bool = False,
) -> Survey:
    """``told``: the rows say their language themselves."""
    labels: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in train:
        labels[_texts(row)][row.label] += 1
    seen = _all_texts(train)
    return Survey(
        rows=len(train),
        labels=_ordered(Counter(row.label for row in train)),
        languages=languages_of(train, told),
        duplicates=sum(sum(found.values()) - len(found) for found in labels.values()),
        conflicts=[" | ".join(texts) for texts, found in labels.items() if len(found) > 1],
        long=sum(len(row.text) > LONG for row in train),
        leaks=_joined(seen & _all_texts(dev)),
        test_leaks=_joined(_all_texts(test) & (seen | _all_texts(dev))),
        strange=_ordered(
            Counter(r.label for r in dev) - Counter({r.label: len(dev) for r in train})
        ),
    )


def _all_texts(rows: Sequence[Labelled]) -> set[tuple[str, ...]]:
    return {_texts(row) for row in rows}


def _joined(found: set[tuple[str, ...]]) -> list[str]:
    return sorted(" | ".join(texts) for texts in found)


def _texts(row: Labelled) -> tuple[str, ...]:
    """What makes a row the same as another: of a pair both texts."""
    both = (row.text,) if row.pair is None else (row.text, row.pair)
    return tuple(text.strip() for text in both)


def _ordered(counts: Counter[str]) -> dict[str, int]:
    """The commonest first, equals by name."""
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def languages_of(rows: Sequence[Labelled], told: bool) -> dict[str, int]:
    """How many rows of each, the commonest first; detected in some of the rows, where none are told."""
    if told:
        return dict(Counter(row.language for row in rows).most_common())
    step = max(1, len(rows) // LOOKED_AT)
    found = Counter(detect(row.text).language or "unknown" for row in rows[::step])
    return {language: count * step for language, count in found.most_common()}


def guessed(rows: Sequence[Mapping[str, str]], given: Columns) -> Columns:
    """The columns by their usual names, else by what is in them; those that were ``given`` stay."""
    names = list(rows[0])
    text = given.text or _named("text", names) or _longest(rows, names)
    others = [name for name in names if name != text]
    label = given.label or _named("label", others) or _fewest(rows, others)
    if not label:
        raise UsageError(", ".join(names), "no column looks like labels", "name it: --label COLUMN")
    left = [name for name in others if name != label]
    return Columns(text, label, given.pair, given.id, given.language or language_column(left))


def language_column(names: Sequence[str]) -> str:
    return _named("language", names)


def _named(role: str, names: Sequence[str]) -> str:
    low = {name.strip().lower(): name for name in names}
    return next((low[usual] for usual in NAMES[role] if usual in low), "")


def _longest(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> str:
    return max(names, key=lambda name: fmean(len(row[name]) for row in rows))


def _fewest(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> str:
    """The column of the fewest different values, of two or more that come back."""
    kinds = {name: len({row[name] for row in rows}) for name in names}
    fitting = [name for name in names if 2 <= kinds[name] <= max(2, len(rows) // 2)]
    return min(fitting, key=lambda name: kinds[name], default="")


def _some(texts: Sequence[str]) -> str:
    shown = "; ".join(repr(text[:40]) for text in texts[:SHOWN])
    return shown + ("; …" if len(texts) > SHOWN else "")
