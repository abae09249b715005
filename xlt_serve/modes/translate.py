"""Prediction from translations: which item has one, and what becomes of those that have none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xlt_serve.calibration import softmax
from xlt_serve.errors import ItemError
from xlt_serve.modes.base import Asked, Context, Cost, Job, Mode, Reading, labelled
from xlt_serve.modes.plain import classified
from xlt_serve.modes.vote import Vote, mean
from xlt_serve.runtime.steps import RunRequest, Steps
from xlt_serve.text.tokens import Tokens
from xlt_serve.translation.items import TranslatedItem, translated
from xlt_serve.types import Pairing, Prediction, Settings, Untranslated

UNREADABLE = Untranslated("nonsense", "the tokenizer finds nothing in the translation")


@dataclass(frozen=True, slots=True)
class TranslatedJob:
    """An item with its translation, both tokenised."""

    job: Job
    translation: TranslatedItem
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class WithTranslation:
    """A prediction from a translation; the numbers are those of ``Pairing``."""

    prediction: Prediction
    ratio: float | None = None
    agreement: float | None = None
    weight: float | None = None


class ReadsTranslations(Mode):
    """Items that have a translation are predicted with it, the others as they are, with the reason."""

    translates = True
    mixes = False
    """The item and its translation are predicted together."""

    @abstractmethod
    def predicted(
        self, context: Context, jobs: Sequence[TranslatedJob], settings: Settings
    ) -> Steps[list[WithTranslation | Untranslated]]:
        """The prediction of each; or why its translation is not to be relied on."""

    def steps(self, context: Context, asked: Asked) -> Steps[list[Prediction]]:
        reading, settings = Reading(context, self, asked), asked.settings
        translations = yield from translated(
            reading, asked.translations, settings.language, context.bundle.manifest, reading.jobs
        )
        ready, bare = self._sorted(context, reading, translations, settings)
        out: dict[int, Prediction] = {}
        answers = yield from self.predicted(context, ready, settings)
        for each, found in zip(ready, answers, strict=True):
            if isinstance(found, Untranslated):
                self._without(reading, each.job, found, settings, bare)
                continue
            told = each.translation
            pairing = Pairing(
                True if self.mixes else None,
                found.ratio,
                found.agreement,
                found.weight,
                told.item,
                told.translator,
                told.quality,
            )
            rests_on = pairing if found.prediction.error is None else None
            out[each.job.index] = replace(found.prediction, mode=self.name, pairing=rests_on)
        plain = yield from classified(context, [job for job, _ in bare], settings)
        for (job, why), answer in zip(bare, plain, strict=True):
            if answer.error is not None:
                out[job.index] = replace(answer, mode=self.name)
                continue
            pairing = Pairing(False if self.mixes else None, reason=why)
            out[job.index] = replace(answer, pairing=pairing)
        return reading.in_order(out)

    def _sorted(
        self,
        context: Context,
        reading: Reading,
        found: dict[int, TranslatedItem | Untranslated],
        settings: Settings,
    ) -> tuple[list[TranslatedJob], list[tuple[Job, Untranslated]]]:
        """The jobs with a translation that can be read, and those without, each with the reason."""
        jobs = [job for job in reading.jobs() if job.index in found]
        with_one = {i: t for i, t in found.items() if isinstance(t, TranslatedItem)}
        encoded = context.encoder.encode(
            [translation.item for translation in with_one.values()], "truncate", settings.max_length
        )
        tokens = dict(zip(with_one, encoded, strict=True))
        ready: list[TranslatedJob] = []
        bare: list[tuple[Job, Untranslated]] = []
        for job in jobs:
            translation, read = found[job.index], tokens.get(job.index)
            if isinstance(translation, TranslatedItem) and isinstance(read, Tokens):
                ready.append(TranslatedJob(job, translation, read))
                continue
            why = translation if isinstance(translation, Untranslated) else UNREADABLE
            self._without(reading, job, why, settings, bare)
        return ready, bare

    def _without(
        self,
        reading: Reading,
        job: Job,
        why: Untranslated,
        settings: Settings,
        bare: list[tuple[Job, Untranslated]],
    ) -> None:
        """An error where a translation is required, else one of those that are predicted alone."""
        if not settings.require_translation:
            bare.append((job, why))
            return
        spoken = job.language or "unknown"
        value = spoken if isinstance(spoken, str) else ", ".join(spoken)
        reading.fail(job.index, ItemError("untranslated", value, why.message))


class Translate(ReadsTranslations):
    """Translate-test: the translation alone, by the plain graph. Where an export has fitted how far good
    translations agree with their texts, both are read, and both vote."""

    name = "translate"
    fields = ("agreement", "weight", "translation", "translator", "quality", "reason")

    def cost(self, context: Context, settings: Settings) -> Cost:
        return Cost(passes=2 if self._vote(context).listens else 1)

    def predicted(
        self, context: Context, jobs: Sequence[TranslatedJob], settings: Settings
    ) -> Steps[list[WithTranslation | Untranslated]]:
        vote = self._vote(context)
        source = context.bundle.manifest.source_language
        alone = []
        for each in jobs:  # what is read is in the source language
            warning = context.warning(source, (piece.ids for piece in each.tokens.pieces))
            alone.append(replace(each.job, tokens=each.tokens, warning=warning))
        if not vote.listens:
            answers = yield from classified(context, alone, settings)
            return [WithTranslation(answer) for answer in answers]
        return (yield from self._voted(context, jobs, vote, settings))

    def _vote(self, context: Context) -> Vote:
        manifest = context.bundle.manifest
        if "vector" not in manifest.graphs["plain"].outputs:
            return Vote()
        return Vote.fitted(manifest.calibration.get(self.name, {}))

    def _voted(
        self, context: Context, jobs: Sequence[TranslatedJob], vote: Vote, settings: Settings
    ) -> Steps[list[WithTranslation | Untranslated]]:
        """The agreement is the cosine of the vectors of text and translation."""
        rows = [each.job.tokens.pieces[0] for each in jobs]
        rows += [each.tokens.pieces[0] for each in jobs]
        outputs = yield RunRequest("plain", rows)
        temperature = context.bundle.manifest.temperature("plain")
        out: list[WithTranslation | Untranslated] = []
        for number, each in enumerate(jobs):
            try:
                sides = [outputs.rows(n, n + 1) for n in (number, len(jobs) + number)]
            except ItemError as error:
                out.append(WithTranslation(context.refused(self.name, error)))
                continue
            text, translation = (side["vector"][0].astype(np.float64) for side in sides)
            norms = np.linalg.norm(text) * np.linalg.norm(translation)
            agreement = float(text @ translation / max(norms, 1e-12))
            if (why := vote.turned_down(agreement)) is not None:
                out.append(why)
                continue
            weight = vote.weight(agreement)
            of_text, of_other = (softmax(side["logits"], temperature)[0] for side in sides)
            given = mean(weight, of_text, of_other)
            answer = labelled(context, self.name, each.job, given, settings, self.name)
            answer = replace(answer, truncated=answer.truncated or each.tokens.truncated)
            out.append(WithTranslation(answer, agreement=agreement, weight=weight))
        return out
