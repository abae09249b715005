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


class ReadsTranslations(Mode):
    """Items that have a translation are predicted with it, the others as they are, with the reason."""

    translates = True
    mixes = False
    """The item and its translation are predicted together."""

    @abstractmethod
    def predicted(
        self, context: Context, jobs: Sequence[TranslatedJob], settings: Settings
    ) -> Steps[list[tuple[Prediction, float | None]]]:
        """The prediction of each, and the ratio at which its translation was mixed in, if it was."""

    def steps(self, context: Context, asked: Asked) -> Steps[list[Prediction]]:
        reading, settings = Reading(context, self, asked), asked.settings
        found = yield from translated(
            reading, asked.translations, settings.language, context.bundle.manifest, reading.jobs
        )
        ready, bare = self._sorted(context, reading, found, settings)
        out: dict[int, Prediction] = {}
        answers = yield from self.predicted(context, ready, settings)
        for each, (answer, ratio) in zip(ready, answers, strict=True):
            told = each.translation
            pairing = Pairing(
                True if self.mixes else None, ratio, told.item, told.translator, told.quality
            )
            rests_on = pairing if answer.error is None else None
            out[each.job.index] = replace(answer, mode=self.name, pairing=rests_on)
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
            if settings.require_translation:
                spoken = job.language or "unknown"
                value = spoken if isinstance(spoken, str) else ", ".join(spoken)
                reading.fail(job.index, ItemError("untranslated", value, why.message))
            else:
                bare.append((job, why))
        return ready, bare


class Translate(ReadsTranslations):
    """Translate-test: the translation alone, by the plain graph."""

    name = "translate"
    fields = ("translation", "translator", "quality", "reason")

    def predicted(
        self, context: Context, jobs: Sequence[TranslatedJob], settings: Settings
    ) -> Steps[list[tuple[Prediction, float | None]]]:
        source = context.bundle.manifest.source_language
        alone = []
        for each in jobs:  # what is read is in the source language
            warning = context.warning(source, (piece.ids for piece in each.tokens.pieces))
            alone.append(replace(each.job, tokens=each.tokens, warning=warning))
        answers = yield from classified(context, alone, settings)
        return [(answer, None) for answer in answers]
