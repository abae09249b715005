"""A predictor that is fast and known: for tests of everything around the model."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from typing import Any

from xlt_serve.bundle import Bundle
from xlt_serve.errors import ItemError
from xlt_serve.scoring import Order
from xlt_serve.text.tokens import check
from xlt_serve.types import Failure, Prediction


class Fake:
    """Answers with numbers made of the text *and of its batch*: another batch, another answer."""

    def __init__(self, labels: Sequence[str], seconds: float = 0.0, poison: str = "\0none") -> None:
        self.labels, self.seconds, self.poison = list(labels), seconds, poison
        self.batches: list[list[object]] = []
        self.lock = threading.Lock()

    def sizes(self, items: Sequence[object]) -> list[int]:
        return [len(str(item)) for item in items]

    def predict(self, items: Sequence[object], **settings: Any) -> list[Prediction]:
        if self.seconds:
            time.sleep(self.seconds)
        with self.lock:
            self.batches.append(list(items))
        if any(isinstance(item, str) and self.poison in item for item in items):
            raise RuntimeError("poisoned")
        batch = hashlib.sha256(repr(items).encode()).hexdigest()
        return [self.one(item, batch) for item in items]

    def one(self, item: object, batch: str) -> Prediction:
        try:
            checked = check(item, isinstance(item, tuple))
        except ItemError as error:
            return Prediction(label=None, error=Failure(error.code, str(error)))
        seed = hashlib.sha256(repr((checked, batch)).encode()).digest()
        raw = [1 + seed[i] for i in range(len(self.labels))]
        shares = {label: n / sum(raw) for label, n in zip(self.labels, raw, strict=True)}
        best = max(shares, key=lambda label: shares[label])
        return Prediction(best, shares, language="en", tokens=len(repr(checked)) // 4)


def opening(**options: Any) -> Any:
    def open_fake(bundle: Bundle, order: Order) -> Fake:
        return Fake(bundle.manifest.labels, **options)

    return open_fake
