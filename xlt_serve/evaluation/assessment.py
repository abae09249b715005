"""How good a classifier probably is, language by language, and which language to label next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from xlt_serve.bundle import Manifest
from xlt_serve.evaluation import estimates
from xlt_serve.evaluation.distance import ENTRY
from xlt_serve.evaluation.estimates import ENOUGH, Evidence, Known, MethodError
from xlt_serve.evaluation.findings import shown
from xlt_serve.evaluation.observing import LEAST, NOTHING, OTHERS, UNKNOWN, Observed
from xlt_serve.evaluation.scores import Interval, wilson

RULE = (
    "of the languages without labelled rows, that with most wrong answers by the estimate: its share of "
    "the rows times one less its estimated accuracy"
)
ROWS, DEV = "labelled rows", "the bundle's scores on its dev rows"
"""Where the accuracy of a language is known from."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """One language. ``share``: of all rows. ``abstained`` and ``unknown``: shares of its rows, and of the
    pieces that they are cut into. ``distance``: of the middle text to the training text; 1 is that of
    held-out texts of the training's language. ``estimate``: of accuracy, by ``method``, from other languages' labels.
    ``accuracy``: of its ``labelled`` rows. What there is not is None."""

    rows: int
    share: float
    failed: int
    confidence: float
    abstained: float
    agreement: float | None
    unknown: float | None
    tokens_per_word: float | None
    distance: float | None
    estimate: float
    method: str
    labelled: int
    accuracy: Interval | None


@dataclass(frozen=True)
class Assessment:
    """``methods``: how far off each method is (None: not known) where labels are ``known``, told with where
    from. ``chance``: how far off so few labels are of themselves."""

    model: str
    version: str
    source: str
    rows: int
    languages: dict[str, Outlook]
    methods: dict[str, MethodError | None]
    known: dict[str, str]
    chance: float | None
    label_next: str | None
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"rule": RULE}


def assessment(
    found: Mapping[str, Observed],
    labelled: Mapping[str, Observed],
    manifest: Manifest,
    name: str,
    unknown: bool,
) -> Assessment:
    """``found``: the rows in question; ``labelled``: rows of another file, whose labels are known.
    ``unknown``: the vocabulary has a piece for what it lacks."""
    known, where = known_languages(found, labelled, manifest)
    errors = estimates.errors(known)
    ranking = estimates.ranked(errors)
    whole = sum(each.rows for each in found.values())
    languages = {
        language: _outlook(language, each, labelled.get(language), known, ranking, whole, unknown)
        for language, each in found.items()
    }
    return Assessment(
        model=name,
        version=manifest.version,
        source=manifest.source_language,
        rows=whole,
        languages=languages,
        methods=errors,
        known=where,
        chance=estimates.chance(known) if known else None,
        label_next=label_next(languages, where),
        notes=_notes([found, labelled], languages, manifest),
    )


def known_languages(
    found: Mapping[str, Observed], labelled: Mapping[str, Observed], manifest: Manifest
) -> tuple[dict[str, Known], dict[str, str]]:
    """Those with enough labels, and where they are from; where these are too few to measure an error
    by, those too that the bundle was judged in when it was exported."""
    out: dict[str, Known] = {}
    for rows in (labelled, found):
        out |= {language: known for language, each in rows.items() if (known := each.known())}
    for no_language in (UNKNOWN, OTHERS):
        out.pop(no_language, None)
    where = dict.fromkeys(out, ROWS)
    if len(out) < ENOUGH:
        for scores in manifest.scores.values():
            for language, score in scores.items():
                if language not in out and (judged := judged_at_export(score)):
                    out[language], where[language] = judged, DEV
    return out, where


def judged_at_export(score: Mapping[str, Any]) -> Known | None:
    """From how sure the surest tenth, two tenths … of the dev rows were: in between, a straight line."""
    points = [(p["coverage"], p["threshold"]) for p in score.get("risk_coverage", [])]
    if len(points) < ENOUGH or score["count"] < LEAST:
        return None
    coverage, confidence = np.array(points).T
    places = (np.arange(int(score["count"])) + 0.5) / score["count"]
    return Known(np.interp(places, coverage, confidence), accuracy=float(score["accuracy"]))


def label_next(languages: Mapping[str, Outlook], known: Mapping[str, str]) -> str | None:
    """See ``RULE``; None where every language has labelled rows."""
    wrong = {
        language: each.share * (1 - each.estimate)
        for language, each in languages.items()
        if known.get(language) != ROWS and language not in (UNKNOWN, OTHERS)
    }
    return max(wrong, key=lambda language: wrong[language], default=None)


def _outlook(
    language: str,
    seen: Observed,
    labelled: Observed | None,
    known: Mapping[str, Known],
    ranking: list[str],
    whole: int,
    unknown: bool,
) -> Outlook:
    evidence = Evidence(np.array(seen.confidence), seen.agreement())
    made = ((m, estimates.estimate(m, language, evidence, known)) for m in ranking)
    method, estimate = next((m, value) for m, value in made if value is not None)
    right = np.array(seen.right)
    right = right[right != NOTHING]
    if len(right) < LEAST and labelled is not None:
        right = np.array(labelled.right)
        right = right[right != NOTHING]
    return Outlook(
        rows=seen.rows,
        share=seen.rows / whole,
        failed=seen.failed,
        confidence=float(evidence.confidence.mean()),
        abstained=seen.abstained / seen.rows,
        agreement=evidence.agreement,
        unknown=seen.unknown / seen.pieces if unknown and seen.pieces else None,
        tokens_per_word=seen.tokens / seen.words if seen.words else None,
        distance=float(np.median(seen.distances)) if seen.distances else None,
        estimate=estimate,
        method=method,
        labelled=len(right),
        accuracy=wilson(int(right.sum()), len(right)) if len(right) else None,
    )


def _notes(
    files: Sequence[Mapping[str, Observed]], languages: Mapping[str, Outlook], manifest: Manifest
) -> list[str]:
    """What a reader would else take for granted."""
    out = []
    if ENTRY not in manifest.checks:
        out.append(
            "no distances: the bundle has no summary of its training text, which xlt export writes where "
            "the task's data are there (and there are not too many labels)"
        )
    if failed := {lg: each.failed for lg, each in languages.items() if each.failed}:
        told = ", ".join(f"{language} {count}" for language, count in failed.items())
        out.append(f"rows that failed, counted as wrong: {told}")
    if strange := sorted({lg for seen in files for lg, each in seen.items() if each.strange}):
        out.append(
            f"rows with labels that the model does not have, always wrong: {', '.join(strange)}"
        )
    few = [lg for lg, each in languages.items() if 0 < each.labelled < LEAST]
    if few:
        out.append(f"fewer than {LEAST} labels, nothing is measured by them: {', '.join(few)}")
    if OTHERS in languages:
        out.append(f"{OTHERS}: languages that no row names, each of fewer than one row in 200")
    if few := [lg for lg, each in languages.items() if each.rows < 100]:
        out.append(f"fewer than 100 rows: {', '.join(few)}; their shares are rough")
    return out


def lines(found: Assessment) -> list[str]:
    """A line for each language; columns that nobody has a value for are left out."""
    columns = {
        "confidence": [f"{each.confidence:.3f}" for each in found.languages.values()],
        "abstained": _column(found, "abstained", ".1%"),
        "agreement": _column(found, "agreement", ".3f"),
        "unknown": _column(found, "unknown", ".2%"),
        "tokens/word": _column(found, "tokens_per_word", ".2f"),
        "distance": _column(found, "distance", ".2f"),
        "estimate": [f"{each.estimate:.3f}" for each in found.languages.values()],
        "accuracy (labels)": [
            "–" if each.accuracy is None else f"{shown(each.accuracy)} ({each.labelled})"
            for each in found.languages.values()
        ],
    }
    if not any(each.abstained for each in found.languages.values()):
        del columns["abstained"]
    kept = {name: cells for name, cells in columns.items() if set(cells) != {"–"}}
    width = {name: max(map(len, [name, *cells])) for name, cells in kept.items()}
    head = "  ".join(name.rjust(width[name]) for name in kept)
    out = [f"{found.model} {found.version}", f"{'language':10}{'rows':>9}  {head}"]
    for number, (language, each) in enumerate(found.languages.items()):
        cells = "  ".join(kept[name][number].rjust(width[name]) for name in kept)
        out.append(f"{language:10}{each.rows:9d}  {cells}")
    return [*out, "", *_method_lines(found), *found.notes, "", *_next_lines(found)]


def _column(found: Assessment, name: str, form: str) -> list[str]:
    values = [getattr(each, name) for each in found.languages.values()]
    return ["–" if value is None else format(value, form) for value in values]


def _method_lines(found: Assessment) -> list[str]:
    """How far off the estimates are."""
    if not found.known:
        return [
            "estimate: the mean confidence, for want of labels in any language; how far off it is, is not "
            "known (--labelled FILE)"
        ]
    source = " and ".join(sorted(set(found.known.values()), reverse=True))
    measured = {name: each for name, each in found.methods.items() if each is not None}
    if not measured:
        return [
            f"estimate: from {source} of {', '.join(found.known)} alone; how far off it is, is not known: "
            "that takes labels in two languages"
        ]
    out = [
        f"how far off the estimates are in {len(found.known)} languages, by {source}; each language is",
        "estimated from the others, by the first of these methods that it has the data for:",
        f"{'method':14}{'off by':>8}{'bias':>8}{'worst':>8}      languages",
    ]
    for name in (*estimates.ranked(measured), estimates.BASELINE):
        if (each := measured.get(name)) is not None:
            worst = f"{each.worst:8.3f} {each.worst_language:5}"
            out.append(f"{name:14}{each.mean:8.3f}{each.bias:+8.3f}{worst}{each.languages:9d}")
    out.append(
        f"{estimates.BASELINE}: what the other languages have on average, for comparison; no language is estimated by it"
    )
    out.append(
        f"so few labels are off by {found.chance:.3f} of themselves; that the best method was chosen by "
        "these errors flatters it a little"
    )
    return out


def _next_lines(found: Assessment) -> list[str]:
    if found.label_next is None:
        return ["label next: every language has labels"]
    each = found.languages[found.label_next]
    return [
        f"label next: {found.label_next} ({each.share:.1%} of the rows, {each.estimate:.3f} estimated)",
        f"  {RULE}",
    ]
