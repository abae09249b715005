"""Rows to predictions, slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from xlt_serve import modes, translation
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.errors import XltError, with_name
from xlt_serve.files.window import Row, Window
from xlt_serve.modes.base import Context
from xlt_serve.runtime.session import Options, available_cores
from xlt_serve.scoring.order import Order
from xlt_serve.scoring.slices import slices
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


class Answerer:
    """May be used from several threads, as its predictor."""

    def __init__(self, predictor: Predictor, order: Order) -> None:
        self.predictor, self.order = predictor, order

    def slices(self, window: Window) -> list[list[int]]:
        """Numbers of the rows that can be read, in slices of similar size."""
        good = [number for number in range(len(window.rows)) if number not in window.bad]
        # By tokens, not by bytes: scripts differ in how many bytes a token has, and slices of mixed
        # lengths make batches of mixed lengths (of 1,000 texts in 21 languages 9 % padding, not 2 %).
        sizes = self.predictor.sizes([self.item(window.rows[number]) for number in good])
        return [[good[i] for i in part] for part in slices(sizes)]

    def answer(self, window: Window, numbers: Sequence[int]) -> list[Prediction]:
        rows = [window.rows[number] for number in numbers]
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

    def assembled(
        self, window: Window, parts: Sequence[tuple[Sequence[int], Sequence[Prediction]]]
    ) -> list[Prediction]:
        """One prediction for each row, in order, also for those that could not be read."""
        found = {number: self.failed(*problem) for number, problem in window.bad.items()}
        for numbers, predictions in parts:
            found.update(zip(numbers, predictions, strict=True))
        return [found[number] for number in range(len(window.rows))]

    def failed(self, code: str, message: str) -> Prediction:
        return Prediction(label=None, mode=self.order.mode, error=Failure(code, message))

    def item(self, row: Row) -> object:
        first = _text(row.get(self.order.text or ""))
        return (first, _text(row.get(self.order.pair))) if self.order.pair else first

    def _predict(self, rows: Sequence[Row]) -> list[Prediction]:
        items, settings = [self.item(row) for row in rows], self.order.settings
        if self.order.translation is None:
            return self.predictor.predict(items, **settings)
        given = [row.get(self.order.translation) or None for row in rows]
        return self.predictor.predict(items, translations=given, **settings)

    def _alone(self, row: Row) -> Prediction:
        try:
            (prediction,) = self._predict([row])
        except XltError:
            raise
        except Exception as error:
            return self.failed("failed", with_name(error))
        return prediction


def _text(value: Any) -> Any:
    """Text that was read from bytes which are no UTF-8 goes on as bytes, and gets its own error."""
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
    return value
