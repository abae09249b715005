"""Labels that nobody trained for: does the text entail "This is about sports."?

Every text is paired with a hypothesis for every label. Each text and each hypothesis is tokenised
once, and all pairs are asked for together, so that they share batches. With the scorer ``similarity``
a text and a hypothesis are run on their own, and the cosine of their vectors decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlt_serve.bundle import Bundle
from xlt_serve.calibration import softmax
from xlt_serve.classifier import Classifier, largest
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.runtime.steps import RunRequest, Steps
from xlt_serve.text.language import detect
from xlt_serve.text.tokens import Piece, Tokens, check
from xlt_serve.types import Failure, Prediction

if TYPE_CHECKING:
    from xlt_serve.wire import ZeroShotRequest

TEMPLATE = "This text is about {}."
ANY = "*"
SHARPNESS = 0.05
"""Cosines are close together: they are divided by this before the softmax."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Options:
    """As ``ZeroShotRequest`` has them."""

    labels: tuple[str, ...]
    template: str | dict[str, str] | None = None
    multi_label: bool = False
    scorer: str | None = None
    language: str | None = None
    max_length: int | None = None
    abstain_below: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not self.labels:
            raise UsageError("no labels", "there must be at least one", 'give ["sports", …]')
        if len(set(self.labels)) < len(self.labels):
            raise UsageError("labels", "one of them is there twice", "leave it out")
        if any(not label.strip() for label in self.labels):
            raise UsageError("labels", "one of them is blank", "leave it out")
        given = self.template
        for text in given.values() if isinstance(given, dict) else [given or TEMPLATE]:
            if text.count("{}") != 1:
                raise UsageError(
                    f"template {text!r}", "must have one {} for the label", f"e.g. {TEMPLATE!r}"
                )

    def hypotheses(self, language: str | None) -> tuple[str, ...]:
        """One for each label, in the text's language if there is a template for it."""
        template = self.template or TEMPLATE
        if isinstance(template, dict):
            template = template.get(language or ANY, template.get(ANY, TEMPLATE))
        return tuple(template.replace("{}", label) for label in self.labels)


def options_of(request: ZeroShotRequest) -> Options:
    language = request.language
    return Options(
        labels=tuple(request.labels),
        template=request.template,
        multi_label=request.multi_label,
        scorer=request.scorer,
        language=language if language is None or isinstance(language, str) else language[0],
        max_length=request.max_length,
        abstain_below=request.abstain_below,
        top_k=request.top_k,
    )


def entailment(bundle: Bundle) -> tuple[int, int] | None:
    """The numbers of the labels for yes and no, where a bundle judges entailment."""
    manifest = bundle.manifest
    if not manifest.pair or "entailment" not in manifest.labels:
        return None
    for no in ("contradiction", "not_entailment"):
        if no in manifest.labels:
            return manifest.labels.index("entailment"), manifest.labels.index(no)
    return None


def scorer_of(bundle: Bundle, options: Options) -> str:
    """The one asked for, else the one that was better when the bundle was made."""
    if options.scorer is not None:
        return options.scorer
    return str(bundle.manifest.checks.get("zero_shot", {}).get("scorer", "nli"))


def refuse_unfit(bundle: Bundle, options: Options) -> None:
    scorer = scorer_of(bundle, options)
    if scorer == "nli" and entailment(bundle) is None:
        raise UsageError(
            f"zero_shot on {bundle.manifest.name}",
            "needs a bundle trained on entailment",
            "make one with `python -m xlt_training.encoders.make_entailment --out FOLDER` and serve it beside",
        )
    if scorer == "similarity" and "vector" not in bundle.manifest.graphs["plain"].outputs:
        raise UsageError(
            f"scorer=similarity on {bundle.manifest.name}",
            "needs a bundle with sentence vectors",
            "export it with --vector, or use scorer=nli",
        )


@dataclass(frozen=True, slots=True)
class _Job:
    index: int
    ids: list[int]
    language: str | None
    hypotheses: tuple[str, ...]


def steps(
    classifier: Classifier, texts: Sequence[object], options: Options
) -> Steps[list[Prediction]]:
    """One prediction for each text, in order, with a probability for each label."""
    refuse_unfit(classifier.bundle, options)
    out: dict[int, Prediction] = {}
    jobs: list[_Job] = []
    valid: list[tuple[int, str]] = []
    for index, text in enumerate(texts):
        try:
            valid.append((index, str(check(text, pair=False))))
        except ItemError as error:
            out[index] = _failed(classifier.bundle, error)
    rows = classifier.encoder.ids([text for _, text in valid])
    for (index, text), ids in zip(valid, rows, strict=True):
        if not ids:
            empty = ItemError("empty", "no token", "a text needs at least one visible character")
            out[index] = _failed(classifier.bundle, empty)
            continue
        language = options.language or detect(text).language
        jobs.append(_Job(index, ids, language, options.hypotheses(language)))
    wanted = sorted({hypothesis for job in jobs for hypothesis in job.hypotheses})
    hypotheses = dict(zip(wanted, classifier.encoder.ids(wanted), strict=True))
    if blank := [text for text, ids in hypotheses.items() if not ids]:
        raise UsageError(f"hypothesis {blank[0]!r}", "the model reads nothing in it", "reword it")
    if scorer_of(classifier.bundle, options) == "nli":
        answers = yield from _entailed(classifier, jobs, hypotheses, options)
    else:
        answers = yield from _similar(classifier, jobs, hypotheses, options)
    for job, answer in zip(jobs, answers, strict=True):
        out[job.index] = answer
    return [out[index] for index in range(len(texts))]


def _entailed(
    classifier: Classifier,
    jobs: Sequence[_Job],
    hypotheses: dict[str, list[int]],
    options: Options,
) -> Steps[list[Prediction]]:
    """Without ``multi_label``, labels compete by how much they are entailed; with it, each is weighed
    against its own contradiction."""
    found = entailment(classifier.bundle)
    assert found is not None
    pairs = [[job.ids, hypotheses[text]] for job in jobs for text in job.hypotheses]
    tokens = _fitted(classifier, pairs, options)
    outputs = yield from _run(tokens)
    temperature = classifier.bundle.manifest.temperature("plain")
    width = len(options.labels)
    answers = []
    for number, job in enumerate(jobs):
        mine = slice(number * width, (number + 1) * width)
        logits = outputs["logits"][mine].astype(np.float64) if outputs else np.zeros((0, 0))
        if options.multi_label:
            scores = softmax(logits[:, list(found)], temperature)[:, 0]
        else:
            scores = softmax(logits[:, found[0]][None], temperature)[0]
        answers.append(_answer(classifier.bundle, job, tokens[mine], scores, options))
    return answers


def _similar(
    classifier: Classifier,
    jobs: Sequence[_Job],
    hypotheses: dict[str, list[int]],
    options: Options,
) -> Steps[list[Prediction]]:
    """Cosines; with ``multi_label`` their positive part, which is no calibrated probability."""
    names = list(hypotheses)
    sides = [[job.ids] for job in jobs] + [[hypotheses[name]] for name in names]
    tokens = _fitted(classifier, sides, options)
    outputs = yield from _run(tokens)
    answers = []
    if outputs:
        vectors = outputs["vector"].astype(np.float64)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-12
        places = {name: len(jobs) + number for number, name in enumerate(names)}
        for number, job in enumerate(jobs):
            cosines = vectors[[places[text] for text in job.hypotheses]] @ vectors[number]
            scores = np.clip(cosines, 0, 1) if options.multi_label else _soft(cosines)
            answers.append(_answer(classifier.bundle, job, [tokens[number]], scores, options))
    return answers


def _soft(cosines: Numbers) -> Numbers:
    rows: Numbers = softmax(cosines[None], SHARPNESS)[0].astype(np.float64)
    return rows


def _run(tokens: Sequence[Tokens]) -> Steps[dict[str, Any]]:
    pieces: list[Piece] = [each.pieces[0] for each in tokens]
    if not pieces:
        return {}
    outputs = yield RunRequest("plain", pieces)
    return outputs


def _fitted(
    classifier: Classifier, sides: Sequence[list[list[int]]], options: Options
) -> list[Tokens]:
    encoder = classifier.encoder
    limit = min(options.max_length or encoder.max_length, encoder.max_length)
    out = []
    for each in sides:
        fitted = encoder.fit(each, limit, "truncate")
        assert isinstance(fitted, Tokens)
        out.append(fitted)
    return out


def _answer(
    bundle: Bundle, job: _Job, tokens: Sequence[Tokens], scores: Numbers, options: Options
) -> Prediction:
    best = int(scores.argmax())
    unsure = options.abstain_below is not None and scores[best] < options.abstain_below
    named = {name: float(p) for name, p in zip(options.labels, scores, strict=True)}
    return Prediction(
        label=None if unsure else options.labels[best],
        probabilities=largest(named, options.top_k),
        language=job.language,
        tokens=len(job.ids),
        truncated=any(each.truncated for each in tokens),
        mode="zero_shot",
        abstained="confidence" if unsure else None,
        bundle=bundle.manifest.name,
        version=bundle.manifest.version,
    )


def _failed(bundle: Bundle, error: ItemError) -> Prediction:
    return Prediction(
        label=None,
        mode="zero_shot",
        error=Failure(error.code, str(error)),
        bundle=bundle.manifest.name,
        version=bundle.manifest.version,
    )
