"""Translations of a set of rows, recorded for training and evaluation.

OUT/en-de.train.tsv            id, engine, text (pair, where rows are pairs), source_hash
OUT/en-de.train.rejected.tsv   what was kept out of it, and why
OUT/en-de.log.jsonl            what became of every text, whatever set it is from
OUT/translations.json          what is in the folder: rows, shares, reasons, length ratios
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from xlt_serve.errors import DataError, UsageError
from xlt_serve.translation.protocol import TranslationError
from xlt_serve.translation.sanity import Flaw, strict_flaw
from xlt_serve.translation.sentences import head
from xlt_serve.translation.translation_log import Made, TranslationLog
from xlt_serve.translation.translators import Translators
from xlt_serve.types import Translation, Untranslated

REPORT = "translations.json"
CALLS = 4
"""Calls of an engine's batch that are waited for at a time: so much is lost at most."""
FAILURES = ("failed", "timeout", "resting")
"""No verdict on a text: the engine is to be asked again."""
SHORT = 20
"""Characters below which the ratio of lengths says nothing."""
LEAST = 20
"""Rows from which on they have a usual ratio."""
FACTOR = 3.0
"""A ratio so many times the usual one, or that part of it, is absurd."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A text, or the two of a pair."""

    id: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows of one language and split that are to be in another language. ``of``: where they are from."""

    source: str
    target: str
    split: str
    rows: Sequence[SourceRow]
    of: str

    @property
    def name(self) -> str:
        return f"{self.source}-{self.target}.{self.split}"

    def texts(self) -> list[str]:
        """Each once: a text is translated once."""
        return list(dict.fromkeys(text.strip() for row in self.rows for text in row.texts))


@dataclass(frozen=True)
class Quality:
    """How a set went. ``share``: of its rows that were ``kept``; ``reasons``: why others were not, a row
    under the first; ``failed``: rows that an engine never answered; ``length_ratio``: characters of
    translation per character of text, at the 5th, 50th and 95th percentile; ``quality``: the engines' own
    mean hint."""

    source: str
    target: str
    split: str
    of: str
    rows: int
    texts: int
    kept: int
    share: float
    failed: int
    reasons: dict[str, int] = field(default_factory=dict)
    length_ratio: dict[str, float] = field(default_factory=dict)
    engines: dict[str, int] = field(default_factory=dict)
    quality: float | None = None


class Recording:
    """A folder of recorded translations. ``made_by``: what they hang on (``config.essence``)."""

    def __init__(
        self, out: Path, translators: Translators, made_by: dict[str, Any], overwrite: bool = False
    ) -> None:
        self.out, self.translators = out, translators
        self.made_by, self.overwrite = made_by, overwrite
        self.failure = ""
        self._begun: set[Path] = set()

    def check(self, asked: Sequence[RowSet]) -> None:
        """Refuse what would end badly, before anything is translated."""
        known = read_report(self.out)
        names = [rows.name for rows in asked]
        for rows in asked:
            if names.count(rows.name) > 1:
                raise UsageError(
                    f"{rows.name}.tsv", "would be written twice", "give each pair once, in one way"
                )
            file = self.out / f"{rows.name}.tsv"
            mine = known.get(f"{rows.name}.tsv")
            if file.exists() and not self.overwrite and (mine is None or mine["of"] != rows.of):
                told = "was not made by this command" if mine is None else f"is of {mine['of']}"
                raise UsageError(file, told, "give another --out, or --overwrite")
            _refuse_ids(rows)
            if not self.translators.router.chain(rows.source, rows.target):
                raise UsageError(
                    f"{rows.source}-{rows.target}",
                    "is a pair that no engine of the translators' file takes",
                    "see which do with xlt translator try",
                )

    def record(
        self, rows: RowSet, step: Callable[[int], object] = lambda count: None
    ) -> tuple[list[SourceRow], Quality]:
        """Translate what is not translated yet, write the set's files. The rows that were kept, and how
        it went."""
        file = self.out / f"{rows.source}-{rows.target}.log.jsonl"
        if self.overwrite and file not in self._begun:
            file.unlink(missing_ok=True)
        self._begun.add(file)
        with TranslationLog(file, self.made_by) as log:
            self._translate(rows, log, step)
            judged = [(row, _parts(row, log)) for row in rows.rows]
        verdicts = _verdicts(judged)
        kept = [
            (row, [part for part in parts if part])
            for (row, parts), verdict in zip(judged, verdicts, strict=True)
            if verdict is None
        ]
        found = _quality(rows, judged, verdicts)
        self.out.mkdir(parents=True, exist_ok=True)
        _write(self.out / f"{rows.name}.tsv", _kept_lines(kept))
        rejected = self.out / f"{rows.name}.rejected.tsv"
        if lines := list(_rejected_lines(judged, verdicts)):
            _write(rejected, ["id\tengine\treason\ttext\ttranslation", *lines])
        else:
            rejected.unlink(missing_ok=True)
        report = read_report(self.out) | {f"{rows.name}.tsv": asdict(found)}
        _write(self.out / REPORT, [json.dumps(report, indent=2, ensure_ascii=False)])
        back = [SourceRow(row.id, tuple(part.translation for part in parts)) for row, parts in kept]
        return back, found

    def _translate(self, rows: RowSet, log: TranslationLog, step: Callable[[int], object]) -> None:
        left = [text for text in rows.texts() if text not in log]
        step(len(rows.texts()) - len(left))
        router = self.translators.router
        engines = router.chain(rows.source, rows.target)
        size = CALLS * max((engine.batch * engine.calls for engine in engines), default=1)
        refused: dict[str, Made] = {}

        def remember(text: str, given: Translation, flaw: Flaw) -> None:
            refused[text] = Made(text, given.text, given.engine, given.quality, flaw)

        router.judge, router.refused = strict_flaw, remember
        for start in range(0, len(left), size):
            texts = left[start : start + size]
            languages = [rows.source] * len(texts)
            outcomes = self.translators.translate(texts, languages, rows.target)
            made, failed = [], []
            for text, outcome in zip(texts, outcomes, strict=True):
                shown = head(text, router.longest)  # of a long text the beginning
                if isinstance(outcome, Translation):
                    done = Made(text, outcome.text.strip(), outcome.engine, outcome.quality)
                    made.append(done)
                elif outcome.code == "nonsense" and shown in refused:
                    made.append(replace(refused[shown], text=text))
                else:
                    failed.append(outcome)
            log.add(made)
            self._refuse_failure(failed, len(texts))
            step(len(texts))

    def _refuse_failure(self, failed: Sequence[Untranslated], asked: int) -> None:
        """Where engines fail on all that they are asked, there is no use in asking on."""
        if not failed:
            return
        told = [outcome.message for outcome in failed if outcome.code in ("failed", "timeout")]
        self.failure = (told or [failed[0].message])[0]
        if len(failed) == asked and any(outcome.code in FAILURES for outcome in failed):
            raise TranslationError(
                self.failure, "nothing is translated any more", "mend it; the same command goes on"
            )


def read_report(out: Path) -> dict[str, Any]:
    """What is known of a folder's files, by name."""
    try:
        found = json.loads((out / REPORT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(out / REPORT, f"is not JSON ({error})", "remove it") from None
    if not isinstance(found, dict):
        raise DataError(out / REPORT, "is no report of translations", "remove it")
    return found


def source_hash(texts: Sequence[str]) -> str:
    """Of what was translated: a row's number may belong to another text by the time it is read."""
    joined = "\0".join(text.strip() for text in texts)
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _refuse_ids(rows: RowSet) -> None:
    seen: dict[str, tuple[str, ...]] = {}
    for row in rows.rows:
        if "\t" in row.id or "\n" in row.id or "\r" in row.id:
            raise DataError(f"{rows.of}, id {row.id!r}", "has a tab or line break", "rename it")
        if seen.setdefault(row.id, row.texts) != row.texts:
            raise DataError(
                f"{rows.of}, id {row.id!r}",
                f"is that of several texts in {rows.source}",
                "name a column of ids of their own, or none: rows are numbered then",
            )


def _parts(row: SourceRow, log: TranslationLog) -> list[Made | None]:
    return [log.get(text.strip()) for text in row.texts]


Judged = tuple[SourceRow, Sequence[Made | None]]


def _verdicts(judged: Sequence[Judged]) -> list[Flaw | str | None]:
    """For each row None where it is kept, a flaw, or "failed" where nothing is known."""
    ratios = [
        len(part.translation) / len(part.text)
        for _, parts in judged
        for part in parts
        if part and not part.flaw and len(part.text) >= SHORT
    ]
    usual = median(ratios) if len(ratios) >= LEAST else None
    return [_verdict(parts, usual) for _, parts in judged]


def _verdict(parts: Sequence[Made | None], usual: float | None) -> Flaw | str | None:
    for part in parts:
        if part is None:
            return "failed"
        if part.flaw:
            return part.flaw
        if usual and len(part.text) >= SHORT:
            ratio = len(part.translation) / len(part.text)
            if not usual / FACTOR <= ratio <= usual * FACTOR:
                rule = f"has {ratio:.2f} characters for one of the text; {usual:.2f} are usual here"
                return Flaw("length", rule)
    return None


def _quality(
    rows: RowSet, judged: Sequence[Judged], verdicts: Sequence[Flaw | str | None]
) -> Quality:
    kept = [
        part
        for (_, parts), verdict in zip(judged, verdicts, strict=True)
        if verdict is None
        for part in parts
        if part
    ]
    reasons = Counter(verdict.kind for verdict in verdicts if isinstance(verdict, Flaw))
    count = sum(verdict is None for verdict in verdicts)
    hints = [part.quality for part in kept if part.quality is not None]
    return Quality(
        source=rows.source,
        target=rows.target,
        split=rows.split,
        of=rows.of,
        rows=len(judged),
        texts=len(rows.texts()),
        kept=count,
        share=round(count / len(judged), 4) if judged else 0.0,
        failed=sum(verdict == "failed" for verdict in verdicts),
        reasons=dict(reasons.most_common()),
        length_ratio=_percentiles([len(part.translation) / len(part.text) for part in kept]),
        engines=dict(Counter(part.engine for part in kept).most_common()),
        quality=round(fmean(hints), 4) if hints else None,
    )


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if len(values) < 2:
        return {name: round(values[0], 3) for name in ("p5", "p50", "p95") if values}
    cuts = quantiles(values, n=20, method="inclusive")
    return {"p5": round(cuts[0], 3), "p50": round(cuts[9], 3), "p95": round(cuts[18], 3)}


def _kept_lines(kept: Sequence[tuple[SourceRow, Sequence[Made]]]) -> Iterator[str]:
    pairs = bool(kept) and len(kept[0][0].texts) > 1
    yield "\t".join(["id", "engine", "text", *(["pair"] if pairs else []), "source_hash"])
    for row, parts in kept:
        engines = "+".join(dict.fromkeys(part.engine for part in parts))
        texts = [_flat(part.translation) for part in parts]
        yield "\t".join([row.id, engines, *texts, source_hash(row.texts)])


def _rejected_lines(
    judged: Sequence[Judged], verdicts: Sequence[Flaw | str | None]
) -> Iterator[str]:
    for (row, parts), verdict in zip(judged, verdicts, strict=True):
        if isinstance(verdict, Flaw):
            engines = "+".join(dict.fromkeys(part.engine for part in parts if part))
            given = " | ".join(_flat(part.translation) for part in parts if part)
            told = f"{verdict.kind}: {verdict.rule}"
            text = " | ".join(_flat(text) for text in row.texts)
            yield "\t".join([row.id, engines, _flat(told), text, given])


def _flat(text: str) -> str:
    """On one line, without a tab: what TSV has room for."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()


def _write(file: Path, lines: Sequence[str] | Iterator[str]) -> None:
    """Whole or not at all."""
    part = file.with_name(f".{file.name}.part")
    part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    part.replace(file)


def table(found: Sequence[Quality]) -> list[str]:
    """For a reader, a line for each set."""
    lines = [f"{'':16} {'rows':>7} {'kept':>7} {'share':>7}  {'length ratio':20} left out"]
    for one in found:
        reasons = [f"{kind} {count}" for kind, count in one.reasons.items()]
        reasons += [f"failed {one.failed}"] if one.failed else []
        ratio = one.length_ratio
        spread = f"{ratio['p50']:.2f} ({ratio['p5']:.2f}–{ratio['p95']:.2f})" if ratio else "–"
        name = f"{one.source}-{one.target} {one.split}"
        lines.append(
            f"{name:16} {one.rows:7,} {one.kept:7,} {one.share:7.1%}  {spread:20} "
            f"{', '.join(reasons) or 'none'}"
        )
    return lines
