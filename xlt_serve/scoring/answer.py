"""Rows to answers, slice by slice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from xlt_serve import modes, translation
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.errors import XltError, with_name
from xlt_serve.files.nested import value_of
from xlt_serve.files.window import Row, Window
from xlt_serve.modes.base import Context
from xlt_serve.runtime.session import Options, available_cores
from xlt_serve.scoring import columns
from xlt_serve.scoring.answered import Answer, AnsweredTexts, Spot, Texts, key_of
from xlt_serve.scoring.order import Order
from xlt_serve.scoring.slices import (
    LEAST_ROWS,
    LEAST_TOKENS,
    SLICE_ROWS,
    SLICE_TOKENS,
    slices,
)
from xlt_serve.text.synonyms import Tables
from xlt_serve.text.tokens import Encoder
from xlt_serve.types import Failure, Prediction


class Predictor(Protocol):
    """What scoring needs of a ``Classifier``."""

    @property
    def predict(self) -> Callable[..., list[Prediction]]: ...

    def sizes(self, items: Sequence[object]) -> list[int]: ...


def opened(bundle: Bundle, order: Order) -> Classifier:
    options = Options(threads=1, provider=order.provider, devices=order.devices)
    translators = None
    if order.translators is not None:
        # A file is in no hurry, and the engines' own time-outs hold.
        translators = translation.load(Path(order.translators), patient=True)
    return Classifier(bundle, options, order.budget, translators, order.tables)


def refuse_unfit(bundle: Bundle, order: Order) -> None:
    """What ``predict`` would say of every row, before a model is loaded and anything is touched."""
    manifest, settings = bundle.manifest, modes.settings(**order.settings)
    encoder = Encoder(bundle.file(manifest.tokenizer), manifest.max_length)
    context = Context(bundle, encoder, Tables(bundle, order.tables), provider=order.provider)
    modes.of(settings).check(settings)
    modes.of(settings).refuse_unfit(context, settings)


def workers_of(order: Order) -> int:
    """Two for each GPU: one prepares while the other runs. With translators twice as many: while some
    wait for their translations, the others run."""
    least = available_cores() if order.provider == "cpu" else 2 * max(1, len(order.devices))
    return order.workers or (2 * least if order.translators else least)


@dataclass(slots=True)
class WindowPlan:
    """Who answers the rows of a window: ``slices`` are run, ``copies`` are of the same text in this
    window or one before, ``done`` needs nothing."""

    texts: Texts
    keys: list[bytes]
    slices: list[list[int]]
    copies: list[tuple[int, Texts]]
    done: dict[int, Answer]


class Answerer:
    """May be used from several threads, as its predictor; ``plan`` from one, in the order of windows.
    ``before``: what an earlier output says of rows that are as they were."""

    def __init__(
        self,
        predictor: Predictor,
        order: Order,
        answered: AnsweredTexts | None = None,
        before: Callable[[Window], dict[int, Answer]] | None = None,
    ) -> None:
        self.predictor, self.order = predictor, order
        self.answered = answered or AnsweredTexts()
        self._before = before
        self._names = columns.possible(order.mode)
        self._mode = modes.MODES[order.mode]

    def plan(self, spot: Spot, window: Window) -> WindowPlan:
        done = {n: self.failed(*problem) for n, problem in window.bad.items()}
        if self._before is not None:
            done |= {n: answer for n, answer in self._before(window).items() if n not in done}
        keys, fresh, copies = [b""] * len(window.rows), [], []
        first: set[bytes] = set()
        items = {}
        for number, row in enumerate(window.rows):
            if number in done:
                continue
            items[number] = self.item(row)
            keys[number] = key = key_of(items[number], self._translation(row))
            # What a translator could not do for one text it may for the next one like it.
            earlier = None if self._mode.translates else self.answered.find(key)
            if key and (earlier or key in first):
                copies.append((number, earlier))
            else:
                first.add(key)
                fresh.append(number)
        texts = self.answered.begin(spot, first)
        # By tokens, not by bytes: scripts differ in how many bytes a token has, and slices of mixed
        # lengths make batches of mixed lengths (of 1,000 texts in 21 languages 9 % padding, not 2 %).
        sizes = self.predictor.sizes([items[number] for number in fresh])
        # Where each text runs many times, the smallest slices are large enough, and soon done.
        limits = (LEAST_ROWS, LEAST_TOKENS) if self._mode.repeats else (SLICE_ROWS, SLICE_TOKENS)
        parts = [[fresh[i] for i in part] for part in slices(sizes, *limits)]
        return WindowPlan(texts, keys, parts, [(n, found or texts) for n, found in copies], done)

    def answer(self, plan: WindowPlan, window: Window, numbers: Sequence[int]) -> list[Answer]:
        """To a slice; kept for whoever asks again."""
        rows = [window.rows[number] for number in numbers]
        answers = [self._values(prediction) for prediction in self._predictions(rows)]
        self.answered.put(plan.texts, numbers, [plan.keys[number] for number in numbers], answers)
        return answers

    def known(self, plan: WindowPlan, numbers: Sequence[int]) -> list[Answer] | None:
        """The answers to a slice that were given before a kill."""
        found = self.answered.known(plan.texts.spot, numbers)
        if found is not None:
            plan.texts.fill([plan.keys[number] for number in numbers], found)
        return found

    def assembled(
        self, plan: WindowPlan, parts: Iterable[tuple[Sequence[int], Sequence[Answer]]]
    ) -> list[Answer]:
        """One answer for each row, in order, also for those that could not be read."""
        found = dict(plan.done)
        for numbers, answers in parts:
            found.update(zip(numbers, answers, strict=True))
        for number, texts in plan.copies:
            found[number] = texts.answer(plan.keys[number])
        return [found[number] for number in range(len(found))]

    def failed(self, code: str, message: str) -> Answer:
        return self._values(self._failure(code, message))

    def item(self, row: Row) -> object:
        first = _text(value_of(row, self.order.text or ""))
        if not self.order.pair:
            return first
        return first, _text(value_of(row, self.order.pair))

    def _values(self, prediction: Prediction) -> Answer:
        """As JSON gives it back: the same whether it was kept in between or not."""
        found: Answer = json.loads(json.dumps(columns.values(prediction, self._names)))
        return found

    def _failure(self, code: str, message: str) -> Prediction:
        return Prediction(label=None, mode=self.order.mode, error=Failure(code, message))

    def _translation(self, row: Row) -> Any:
        return value_of(row, self.order.translation) or None if self.order.translation else None

    def _predictions(self, rows: Sequence[Row]) -> list[Prediction]:
        try:
            return self._predict(rows)
        except XltError:
            raise  # a wrong option or bundle, no row's fault
        except Exception:
            # One row must not sink its neighbours. If none of them can be answered, the fault is
            # not the rows', and a file full of errors would only hide it.
            alone = [self._alone(row) for row in rows]
            if len(rows) > 1 and all(one.error and one.error.code == "failed" for one in alone):
                raise
            return alone

    def _predict(self, rows: Sequence[Row]) -> list[Prediction]:
        items, settings = [self.item(row) for row in rows], self.order.settings
        if self.order.translation is None:
            return self.predictor.predict(items, **settings)
        given = [self._translation(row) for row in rows]
        return self.predictor.predict(items, translations=given, **settings)

    def _alone(self, row: Row) -> Prediction:
        try:
            (prediction,) = self._predict([row])
        except XltError:
            raise
        except Exception as error:
            return self._failure("failed", with_name(error))
        return prediction


def _text(value: Any) -> Any:
    """Text that was read from bytes which are no UTF-8 goes on as these bytes, and gets its own error."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            try:
                return value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:  # half a character, as an escape of JSON
                return value.encode("utf-8", "surrogatepass")
    return value
