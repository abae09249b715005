"""Prediction from translations: which item has one, and what becomes of those that have none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xlt_serve.errors import ItemError
from xlt_serve.modes.base import Asked, Context, Job, Mode, Reading
from xlt_serve.modes.plain import classified
from xlt_serve.runtime.steps import Steps
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
    """Translate-test: the translation alone, by the plain graph."""

    name = "translate"
    fields = ("translation", "translator", "quality", "reason")

    def predicted(
        self, context: Context, jobs: Sequence[TranslatedJob], settings: Settings
    ) -> Steps[list[WithTranslation | Untranslated]]:
        source = context.bundle.manifest.source_language
        alone = []
        for each in jobs:  # what is read is in the source language
            warning = context.warning(source, (piece.ids for piece in each.tokens.pieces))
            alone.append(replace(each.job, tokens=each.tokens, warning=warning))
        answers = yield from classified(context, alone, settings)
        return [WithTranslation(answer) for answer in answers]
