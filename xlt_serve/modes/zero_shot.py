"""Labels that nobody trained for: does the text entail "This is about sports."?

Every text is paired with a hypothesis for every label. Each text and each hypothesis is tokenised
once, and all pairs are asked for together, so that they share batches. With the scorer ``similarity``
a text and a hypothesis are run on their own, and the cosine of their vectors decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from xlt_serve.bundle import Bundle
from xlt_serve.calibration import softmax
from xlt_serve.errors import ItemError, UsageError
from xlt_serve.modes.base import ZERO_SHOT, Asked, Context, Cost, Mode, largest
from xlt_serve.modes.templates import NATIVE, TEMPLATE, TEMPLATES
from xlt_serve.runtime.steps import RowOutputs, RunRequest, Steps
from xlt_serve.text.language import detect
from xlt_serve.text.tokens import Piece, Tokens, check
from xlt_serve.types import LONGEST, Prediction, Settings, check_ranges, option

ANY = "*"
SHARPNESS = 0.05
"""Cosines are close together: they are divided by this before the softmax."""

Numbers = npt.NDArray[np.float64]
Scorer: TypeAlias = Literal["nli", "similarity"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The labels that texts may have, and how they are judged. ``template``: the hypothesis, with {}
    for the label; one, by language with “*” for the rest, or "native": ours in the text's language.
    ``multi_label``: each label on its own, instead of one of them for each text."""

    labels: tuple[str, ...] = option((), "candidate labels", longest=LONGEST)
    template: str | dict[str, str] | None = option(
        None,
        "the hypothesis, with {} for the label: one, by language with “*” for the rest, or “native” for"
        " one that we have in the text's language; else the bundle's better",
        examples=["This text is about {}.", {"de": "In diesem Text geht es um {}.", "*": "{}"}],
        longest=LONGEST,
    )
    multi_label: bool = option(False, "each label on its own, instead of one of them for each text")
    scorer: Scorer | None = option(
        None,
        "entailment, or likeness of text and hypothesis; else the bundle's better",
        choices=get_args(Scorer),
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        object.__setattr__(self, "labels", tuple(self.labels))
        if not self.labels:
            raise UsageError("no labels", "there must be at least one", 'give ["sports", …]')
        if len(set(self.labels)) < len(self.labels):
            raise UsageError("labels", "one of them is there twice", "leave it out")
        if any(not label.strip() for label in self.labels):
            raise UsageError("labels", "one of them is blank", "leave it out")
        if self.template == NATIVE:
            object.__setattr__(self, "template", TEMPLATES | {ANY: TEMPLATE})
        given = self.template
        for text in given.values() if isinstance(given, dict) else [given or TEMPLATE]:
            if text.count("{}") != 1:
                raise UsageError(
                    f"template {text!r}", "must have one {} for the label", f"e.g. {TEMPLATE!r}"
                )

    def template_for(self, language: str | None) -> str:
        """That of the text's language, if there is one."""
        given = self.template or TEMPLATE
        if isinstance(given, dict):
            return given.get(language or ANY, given.get(ANY, TEMPLATE))
        return given

    def templates(self, language: str | None) -> set[str]:
        """All that texts may meet where the request names this language, or none."""
        if language is not None or not isinstance(self.template, dict):
            return {self.template_for(language)}
        return {*self.template.values(), self.template_for(None)}

    def hypotheses(self, language: str | None) -> tuple[str, ...]:
        """One for each label, for texts of this language."""
        template = self.template_for(language)
        return tuple(template.replace("{}", label) for label in self.labels)


def entailment(bundle: Bundle) -> tuple[int, int] | None:
    """The numbers of the labels for yes and no, where a bundle judges entailment."""
    return yes_and_no(bundle.manifest.labels) if bundle.manifest.pair else None


def yes_and_no(labels: Sequence[str]) -> tuple[int, int] | None:
    """The same among any labels, however they are spelt: ENTAILMENT, not-entailment."""
    spelt = [re.sub(r"[\s-]", "_", label.strip().casefold()) for label in labels]
    for no in ("contradiction", "not_entailment"):
        if "entailment" in spelt and no in spelt:
            return spelt.index("entailment"), spelt.index(no)
    return None


def decided(bundle: Bundle, asked: Candidates) -> Candidates:
    """With the scorer and the template that were better when the bundle was made, unless others are
    asked for."""
    better = bundle.manifest.checks.get("zero_shot", {})
    return replace(
        asked,
        scorer=asked.scorer or better.get("scorer", "nli"),
        template=asked.template or better.get("template", TEMPLATE),
    )


@dataclass(frozen=True, slots=True)
class _Text:
    """A valid text with the hypotheses of its language, one for each label. ``ids``: as many of its
    ``count`` tokens as may be read, and one more, which says that it was cut."""

    index: int
    ids: list[int]
    count: int
    language: str | None
    hypotheses: tuple[str, ...]


class ZeroShot(Mode):
    """One of any labels for each text, with a probability for each."""

    name = "zero_shot"
    route = ZERO_SHOT
    options = Candidates
    keyword = "candidates"

    def refuse_unfit(
        self, context: Context, settings: Settings, served: Mapping[str, Bundle] | None = None
    ) -> None:
        bundle = context.bundle
        scorer = decided(bundle, settings.of(Candidates)).scorer
        if scorer == "nli" and entailment(bundle) is None:
            raise UsageError(
                f"zero_shot on {context.name}",
                "needs a bundle trained on entailment",
                "make one with `python -m xlt_training.encoders.make_entailment --out FOLDER` and"
                " serve it beside",
            )
        if scorer == "similarity" and "vector" not in bundle.manifest.graphs["plain"].outputs:
            raise UsageError(
                f"scorer=similarity on {context.name}",
                "needs a bundle with sentence vectors",
                "export it with --vector, or use scorer=nli",
            )

    def suits(self, bundle: Bundle) -> bool:
        return entailment(bundle) is not None

    def cost(self, context: Context, settings: Settings) -> Cost:
        asked = decided(context.bundle, settings.of(Candidates))
        labels = [len(label.encode("utf-8", "replace")) for label in asked.labels]
        templates = [
            len(template.encode("utf-8", "replace")) - len("{}")
            for template in asked.templates(_named(settings))
        ]
        if asked.scorer == "similarity":
            beside = len(templates) * sum(labels) + len(labels) * sum(templates)
            return Cost(beside=beside, shared=len(templates) * len(labels))
        beside = sum(labels) + len(labels) * max(templates)
        more = max(labels) + max(templates)
        return Cost(passes=len(labels), more=more, beside=beside, kinds=len(templates))

    def steps(self, context: Context, asked: Asked) -> Steps[list[Prediction]]:
        settings = asked.settings
        candidates = decided(context.bundle, settings.of(Candidates))
        settings = replace(settings, options=candidates)
        texts, out = self._read(context, asked.items, settings)
        wanted = sorted({hypothesis for text in texts for hypothesis in text.hypotheses})
        hypotheses: dict[str, list[int]] = {}
        for hypothesis, ids in zip(wanted, context.encoder.ids(wanted), strict=True):
            if isinstance(ids, ItemError) or not ids:
                rule = ids.rule if isinstance(ids, ItemError) else "the model reads nothing in it"
                raise UsageError(f"hypothesis {hypothesis!r}", rule, "reword it")
            hypotheses[hypothesis] = ids
        score = _entailed if candidates.scorer == "nli" else _similar
        scored = yield from score(context, texts, hypotheses, settings)
        for text, found in zip(texts, scored, strict=True):
            if isinstance(found, ItemError):
                out[text.index] = context.refused(self.name, found)
            else:
                out[text.index] = self._answer(context, text, *found, settings)
        return [out[index] for index in range(len(asked.items))]

    def _read(
        self, context: Context, items: Sequence[object], settings: Settings
    ) -> tuple[list[_Text], dict[int, Prediction]]:
        """The texts that can be read, and the answers to those that can't, by number."""
        out: dict[int, Prediction] = {}
        valid: dict[int, str] = {}
        for index, item in enumerate(items):
            try:
                valid[index] = str(check(item, pair=False))
            except ItemError as error:
                out[index] = context.refused(self.name, error)
        texts = []
        asked, named = settings.of(Candidates), _named(settings)
        made: dict[str, tuple[str, ...]] = {}  # once for all texts: they may be long
        for (index, item), ids in zip(
            valid.items(), context.encoder.ids(list(valid.values())), strict=True
        ):
            if isinstance(ids, ItemError):
                out[index] = context.refused(self.name, ids)
                continue
            if not ids:
                empty = ItemError(
                    "empty", "no token", "a text needs at least one visible character"
                )
                out[index] = context.refused(self.name, empty)
                continue
            language = named or detect(item).language
            template = asked.template_for(language)
            if template not in made:
                made[template] = asked.hypotheses(language)
            kept = ids[: _limit(context, settings) + 1]
            texts.append(_Text(index, kept, len(ids), language, made[template]))
        return texts, out

    def _answer(
        self, context: Context, text: _Text, scores: Numbers, truncated: bool, settings: Settings
    ) -> Prediction:
        labels = settings.of(Candidates).labels
        best = int(scores.argmax())
        unsure = settings.abstain_below is not None and scores[best] < settings.abstain_below
        named = {name: float(p) for name, p in zip(labels, scores, strict=True)}
        return context.prediction(
            self.name,
            None if unsure else labels[best],
            probabilities=largest(named, settings.top_k),
            language=text.language,
            tokens=text.count,
            truncated=truncated,
            abstained="confidence" if unsure else None,
            warning=context.warning(text.language, [text.ids]),
        )


def _named(settings: Settings) -> str | None:
    """The language that the request says its texts have."""
    told = settings.language
    return told if told is None or isinstance(told, str) else told[0]


_Scored: TypeAlias = list[tuple[Numbers, bool] | ItemError]
"""Of each text: a score for each label, and whether something had to be cut; or why it has none."""


def _entailed(
    context: Context, texts: Sequence[_Text], hypotheses: dict[str, list[int]], settings: Settings
) -> Steps[_Scored]:
    """Without ``multi_label``, labels compete by how much they are entailed; with it, each is weighed
    against its own contradiction."""
    asked, found = settings.of(Candidates), entailment(context.bundle)
    assert found is not None
    pairs = [[text.ids, hypotheses[name]] for text in texts for name in text.hypotheses]
    tokens = _fitted(context, pairs, settings)
    outputs = yield from _run(tokens)
    temperature = context.bundle.manifest.temperature("plain")
    width = len(asked.labels)
    out: _Scored = []
    for number in range(len(texts)):
        mine = slice(number * width, (number + 1) * width)
        try:
            logits = outputs.rows(mine.start, mine.stop)["logits"].astype(np.float64)
        except ItemError as error:
            out.append(error)
            continue
        if asked.multi_label:
            scores = softmax(logits[:, list(found)], temperature)[:, 0]
        else:
            scores = softmax(logits[:, found[0]][None], temperature)[0]
        out.append((scores, any(each.truncated for each in tokens[mine])))
    return out


def _similar(
    context: Context, texts: Sequence[_Text], hypotheses: dict[str, list[int]], settings: Settings
) -> Steps[_Scored]:
    """Cosines; with ``multi_label`` their positive part, which is no calibrated probability."""
    names = list(hypotheses)
    sides = [[text.ids] for text in texts] + [[hypotheses[name]] for name in names]
    tokens = _fitted(context, sides, settings)
    outputs = yield from _run(tokens)
    places = {name: len(texts) + number for number, name in enumerate(names)}
    out: _Scored = []
    for number, text in enumerate(texts):
        try:
            against = [_direction(outputs, places[name]) for name in text.hypotheses]
            cosines = np.stack(against) @ _direction(outputs, number)
        except ItemError as error:
            out.append(error)
            continue
        scores = softmax(cosines[None], SHARPNESS)[0]
        if settings.of(Candidates).multi_label:
            scores = np.clip(cosines, 0, 1)
        out.append((scores, tokens[number].truncated))
    return out


def _direction(outputs: RowOutputs, row: int) -> Numbers:
    """The vector of a row, of length 1."""
    vector: Numbers = outputs.rows(row, row + 1)["vector"][0].astype(np.float64)
    return vector / (np.linalg.norm(vector) + 1e-12)


def _run(tokens: Sequence[Tokens]) -> Steps[RowOutputs]:
    pieces: list[Piece] = [each.pieces[0] for each in tokens]
    if not pieces:
        return RowOutputs({})
    outputs: RowOutputs = yield RunRequest("plain", pieces)
    return outputs


def _limit(context: Context, settings: Settings) -> int:
    longest = context.encoder.max_length
    return min(settings.max_length or longest, longest)


def _fitted(context: Context, sides: Sequence[list[list[int]]], settings: Settings) -> list[Tokens]:
    encoder, limit = context.encoder, _limit(context, settings)
    out = []
    for each in sides:
        fitted = encoder.fit(each, limit, "truncate")
        assert isinstance(fitted, Tokens)
        out.append(fitted)
    return out
