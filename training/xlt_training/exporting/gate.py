"""The gate: every exported graph against the torch model on real text, language by language."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from xlt_serve import calibration as calibrate
from xlt_serve.classifier import Classifier as Served
from xlt_serve.errors import DataError, ExportRefused, UsageError
from xlt_serve.evaluation import distance
from xlt_serve.evaluation.scores import confusion
from xlt_serve.evaluation.scores import macro_f1 as macro_f1_of
from xlt_serve.runtime.runners import Runner, Runners
from xlt_serve.runtime.steps import RunRequest
from xlt_serve.smoothing.noise import Noise
from xlt_serve.text.tokens import Piece
from xlt_training.data import Splits, opened, recorded
from xlt_training.exporting import invariance
from xlt_training.exporting.drawing import drawn
from xlt_training.loop import evaluate
from xlt_training.loop.method import Pairing
from xlt_training.loop.model import Description
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Example

INVARIANCE_TEXTS = 42
NOISE = Noise("gaussian", 0.05)  # in the check of the perturbed graph's invariance
BUDGET = 2048  # tokens of a batch


@dataclass(frozen=True)
class Text:
    """Real text of one language: its dev examples, and some more whose labels are not looked at. ``there``:
    how many dev examples those were drawn of."""

    dev: list[Example]
    more: list[Example]
    there: int = 0


@dataclass(frozen=True)
class Verdict:
    """What goes into the manifest."""

    checks: dict[str, Any]
    scores: dict[str, dict[str, Any]]
    calibration: dict[str, dict[str, float]]


def real_text(
    description: Description,
    data: str,
    only: Sequence[str] = (),
    of_interest: Sequence[str] = (),
    most: int = 300,
) -> dict[str, Text]:
    """Up to ``most`` texts per language of the task, of each label its share (``only`` these languages and the source, if any
    are named, else those ``of_interest`` that there are); {} if they are not there any more. ``data``: where they are now, of files of one's own
    the dev rows; "": where they were."""
    task = recorded({"name": description.task} | description.config.get("task", {}))
    if data:
        task = replace(task, dev=data) if task.name == "files" else replace(task, data=data)
    if not task.data and task.name != "files":
        return {}
    source, examples = description.source_language, opened(task)
    try:
        out = {}
        there = examples.languages("dev")
        wanted = only or of_interest
        if absent := sorted(set(only) - set(there)):
            raise UsageError(
                f"languages {', '.join(absent)}",
                f"the task's dev data have {', '.join(there)}",
                "leave them out",
            )
        for language in there:
            if wanted and language not in (*wanted, source):
                continue
            whole = examples.load("dev", language)
            dev = drawn(whole, most)
            more = drawn(_more(examples, language), most - len(dev))
            out[language] = Text(dev, more, len(whole))
        return out
    except DataError as error:
        if data or "is not there" not in error.rule:  # what is there and wrong is not passed over
            raise
        return {}


def _more(examples: Splits, language: str) -> list[Example]:
    """Train rows, if there are any in this language, and they are still there."""
    try:
        return examples.load("train", language) if language in examples.languages("train") else []
    except DataError:
        return []


def judge(
    model: Classifier,
    pairing: Pairing | None,
    draft: Served,
    texts: dict[str, Text],
    description: Description,
    least: float,
    target_error: float | None = None,
    few: bool = False,
) -> Verdict:
    """Compare, score and calibrate; refuse where a language agrees with torch on too few texts. ``few``: of
    each language a handful, of which one may differ."""
    runners = Runners(draft.bundle, None, BUDGET)
    pieces = {language: tokenised(draft, [*t.dev, *t.more]) for language, t in texts.items()}
    agreement, on_dev = compared_with_torch(runners, model, pairing, texts, pieces)
    (refuse_few if few else refuse_disagreement)(agreement, least)
    source = description.source_language
    truth = {
        language: numbered(text.dev, description.labels)
        for language, text in texts.items()
        if text.dev
    }
    calibration: dict[str, dict[str, float]] = {
        mode: fitted(on_dev[mode][source], truth[source])
        for mode in ("plain", "paired")
        if mode in on_dev
        and mode not in description.fitted
        and source in truth
        and (truth[source] >= 0).any()
    }
    scores = {
        language: scored(
            on_dev["plain"][language],
            truth[language],
            calibration.get("plain", {}).get("temperature", 1.0),
            fitted_here=language == source,
        )
        for language in truth
    }
    for language, row in scores.items():
        dev = texts[language].dev
        row["majority"] = Counter(each.label for each in dev).most_common(1)[0][1] / len(dev)
        best = on_dev["plain"][language].mean(axis=1).argmax(axis=1)
        row["macro_f1"] = macro_f1([each.label for each in dev], best, description.labels)
        row["there"] = max(len(dev), texts[language].there)
    if target_error is not None and "plain" in calibration:
        set_threshold(calibration["plain"], scores, on_dev["plain"], truth, source, target_error)
    lengths = [len(piece.ids) for language in pieces.values() for piece in language]
    checks = {
        "languages": agreement["plain"],
        "graphs": {graph: rows for graph, rows in agreement.items() if graph != "plain"},
        "invariance": check_invariance(runners, pieces),
        "lengths": {"histogram": length_histogram(lengths)},
    }
    if source in texts:
        found = training_text(runners, pieces[source], held=len(texts[source].dev))
        if found is not None:
            checks[distance.ENTRY] = found.to_dict()
    return Verdict(checks, scores, calibration)


def training_text(
    runners: Runners, pieces: Sequence[Piece], held: int
) -> distance.TextSummary | None:
    """Where texts of the source language lie, for ``xlt assess``; the first ``held`` are dev examples."""
    outputs = runners.run(RunRequest("plain", pieces))
    labels = outputs["logits"].argmax(axis=1).astype(np.int64)
    made = (
        distance.summary(output, outputs[output], labels, held)
        for output in ("vector", "logits")
        if output in outputs
    )
    return next((found for found in made if found is not None), None)


Agreement = dict[str, dict[str, dict[str, float]]]
"""By graph and language."""


def compared_with_torch(
    runners: Runners,
    model: Classifier,
    pairing: Pairing | None,
    texts: dict[str, Text],
    pieces: dict[str, list[Piece]],
) -> tuple[Agreement, dict[str, dict[str, np.ndarray]]]:
    """How well each graph agrees with torch in each language, and its logits of the dev texts."""
    agreement: Agreement = {}
    on_dev: dict[str, dict[str, np.ndarray]] = {}
    expected: dict[str, np.ndarray] = {}
    for graph in runners.bundle.manifest.graphs:
        agreement[graph], on_dev[graph] = {}, {}
        for language, text in tqdm(
            texts.items(), disable=not sys.stderr.isatty(), desc=f"{graph}: comparing with torch"
        ):
            given = graph_logits(runners, graph, pieces[language])
            if graph != "perturbed":  # without noise it computes what the plain one does
                expected[language] = torch_logits(graph, model, pairing, [*text.dev, *text.more])
            agreement[graph][language] = compared(given, expected[language])
            on_dev[graph][language] = given[: len(text.dev)]
    return agreement, on_dev


def graph_logits(runners: Runners, graph: str, pieces: Sequence[Piece]) -> np.ndarray:
    """[pieces, streams, labels] as serving computes them: without noise, each text its own pair."""
    io = runners.of(graph).io
    return io.logits_of(runners.run(RunRequest(graph, [io.row(piece) for piece in pieces])))


def in_one_batch(runner: Runner) -> invariance.Run:
    """The logits of texts that share a batch; a graph that takes noise gets some."""

    def run(pieces: Sequence[Piece], padding: int) -> np.ndarray:
        rows = [runner.io.row(piece, NOISE) for piece in pieces]
        return runner.io.logits_of(runner.run(rows, padding))

    return run


def tokenised(draft: Served, examples: Sequence[Example]) -> list[Piece]:
    """Through the bundle's own tokenizer; each text in one piece."""
    items = [e.text if e.pair is None else (e.text, e.pair) for e in examples]
    tokens = draft.encoder.encode(items)
    return [t.pieces[0] for t in tokens if not isinstance(t, Exception)]


@torch.inference_mode()
def torch_logits(
    graph: str, model: Classifier, pairing: Pairing | None, examples: Sequence[Example]
) -> np.ndarray:
    """What ``graph`` should give, [texts, streams, labels]: without noise, each text its own pair."""
    if graph != "paired":
        return evaluate.logits(model, examples)[:, None]
    assert pairing is not None
    out = []
    for start in range(0, len(examples), 64):
        batch = model.batch(examples[start : start + 64])
        mixed = pairing.mix(model, batch, batch)
        out.append(torch.stack([mixed.target.logits, mixed.source.logits], dim=1).numpy())
    return np.concatenate(out)


def compared(given: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    same = given.mean(axis=1).argmax(axis=1) == expected.mean(axis=1).argmax(axis=1)
    return {
        "agreement": float(same.mean()),
        "largest_difference": float(np.abs(expected - given).max()),
        "texts": float(len(given)),
    }


def refuse_disagreement(agreement: Agreement, least: float) -> None:
    _refuse(
        {
            f"{graph} {language}": row["agreement"]
            for graph, rows in agreement.items()
            for language, row in rows.items()
            if not row["agreement"] >= least
        },
        least,
    )


def refuse_few(agreement: Agreement, least: float) -> None:
    """Of a handful of texts one that differs says little: each language may have one, as long as all
    languages together agree on the share that is wanted. One in all is always let pass, unless every
    text has to agree."""
    bad: dict[str, float] = {}
    for graph, rows in agreement.items():
        differ = {name: round(row["texts"] * (1 - row["agreement"])) for name, row in rows.items()}
        whole = sum(row["texts"] for row in rows.values())
        allowed = max(int(least < 1), int(whole * (1 - least)))
        if sum(differ.values()) > allowed:
            bad[f"{graph} of all"] = 1 - sum(differ.values()) / whole
        one = int(least < 1)
        bad |= {
            f"{graph} {name}": rows[name]["agreement"]
            for name, count in differ.items()
            if count > one and not rows[name]["agreement"] >= least
        }
    _refuse(bad, least)


def _refuse(bad: dict[str, float], least: float) -> None:
    if bad:
        shown = ", ".join(f"{where} {value:.3f}" for where, value in sorted(bad.items()))
        raise ExportRefused(
            shown,
            f"is the share of texts with torch's label, below {least}",
            "keep layers in fp32 (--exclude 'layer.0'), export with --precision fp32, name the languages"
            " that it is for (--languages), or lower --agreement knowingly",
        )


def numbered(examples: Sequence[Example], labels: Sequence[str]) -> np.ndarray:
    """The labels' numbers; -1 for one that the model does not know."""
    return np.array([labels.index(e.label) if e.label in labels else -1 for e in examples])


def fitted(logits: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """A temperature on the source language's dev examples, and what it does to them: measured on
    folds that it was not fitted on.

    Train examples are left out: the model knows them by heart, and a temperature fitted on them too
    makes it surer than it should be (SIB-200 topics, English test: an ECE of .15 with them, .05
    without, .11 with no temperature at all).
    """
    known = truth >= 0
    values, labels = logits[known], truth[known]
    raw, mended = calibrate.probabilities(values), calibrate.cross_validated(values, labels)
    return {
        "temperature": calibrate.fit_temperature(values, labels),
        "examples": float(len(labels)),
        **{
            f"{name}_{when}": measure(given, labels)
            for name, measure in MEASURES.items()
            for when, given in (("before", raw), ("after", mended))
        },
    }


MEASURES = {
    "nll": calibrate.negative_log_likelihood,
    "brier": calibrate.brier_score,
    "ece": calibrate.expected_calibration_error,
}


def scored(
    logits: np.ndarray, truth: np.ndarray, temperature: float, *, fitted_here: bool
) -> dict[str, Any]:
    """Accuracy, calibration with 95 % intervals, and risk against coverage, of one language.

    An unknown label counts as an error of accuracy and is left out of the rest.
    """
    known = truth >= 0
    values, labels = logits[known], truth[known]
    hits = logits.mean(axis=1).argmax(axis=1) == truth
    out: dict[str, Any] = {"accuracy": float(hits.mean()), "count": len(truth)}
    if len(labels) == 0:
        return out
    if fitted_here:
        given = calibrate.cross_validated(values, labels)
    else:
        given = calibrate.probabilities(values, temperature)
    for name, measure in MEASURES.items():
        low, high = calibrate.bootstrap_interval(measure, given, labels)
        out[name] = {"value": measure(given, labels), "low": low, "high": high}
    out["risk_coverage"] = [asdict(point) for point in calibrate.risk_coverage(given, labels)]
    return out


def macro_f1(truth: Sequence[str], best: np.ndarray, labels: Sequence[str]) -> float:
    """As ``xlt eval`` counts it: labels that the model does not know are labels, too."""
    every = (*labels, *sorted({*truth} - {*labels}))
    numbers = np.array([every.index(label) for label in truth])
    return macro_f1_of(confusion(numbers, best, len(every)))


def set_threshold(
    calibration: dict[str, float],
    scores: dict[str, dict[str, Any]],
    logits: dict[str, np.ndarray],
    truth: dict[str, np.ndarray],
    source: str,
    target_error: float,
) -> None:
    """``abstain_below`` for a target error on the source's dev data; what it does in each language."""
    temperature = calibration["temperature"]
    given = {
        language: calibrate.probabilities(logits[language][truth[language] >= 0], temperature)
        for language in truth
    }
    labels = {language: numbers[numbers >= 0] for language, numbers in truth.items()}
    threshold = calibrate.threshold_for_error(given[source], labels[source], target_error)
    if threshold is None:
        raise ExportRefused(
            f"--target-error {target_error}",
            f"can't be reached: even the surest {source} dev predictions are wrong more often",
            "give a larger one",
        )
    calibration |= {"abstain_below": threshold, "target_error": target_error}
    for language in scores:
        if len(labels[language]):
            scores[language]["answered"] = asdict(
                calibrate.answered(given[language], labels[language], threshold)
            )


def check_invariance(runners: Runners, pieces: dict[str, list[Piece]]) -> dict[str, Any]:
    """Of every graph, on a few texts of each language."""
    each = max(1, INVARIANCE_TEXTS // len(pieces))
    chosen = [piece for language in pieces.values() for piece in language[:each]]
    chosen = chosen[:INVARIANCE_TEXTS]
    manifest = runners.bundle.manifest
    return {
        graph: invariance.measure(
            in_one_batch(runners.of(graph)), chosen, described.precision, manifest.max_length
        ).to_dict()
        for graph, described in manifest.graphs.items()
    }


def length_histogram(lengths: Sequence[int], step: int = 8) -> dict[str, int]:
    """Token counts, rounded up to multiples of ``step``."""
    counts = Counter(-(-length // step) * step for length in lengths)
    return {str(length): counts[length] for length in sorted(counts)}
