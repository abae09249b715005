from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from xlt_training.loop.learner import check_terms
from xlt_training.loop.method import Method, Objective, compose
from xlt_training.loop.types import Batch, Loss

from xlt_serve.errors import UsageError


@dataclass
class Affine(Method):
    scale: float = 1.0
    shift: float = 0.0

    def objective(self, model: object, batch: Batch, inner: Objective) -> Loss:
        loss = inner(model, batch)  # type: ignore[arg-type]
        return Loss(self.scale * loss.total + self.shift, loss.terms)


class Model:
    """Logits that are given, so that the cross-entropy is known: log 2."""

    class_weights = None

    def __call__(self, *_: object) -> object:
        return type("Output", (), {"logits": torch.zeros(3, 2, requires_grad=True)})


BATCH = Batch(torch.ones(3, 4), torch.ones(3, 4), torch.zeros(3, dtype=torch.long))


def test_the_first_method_is_the_outermost() -> None:
    log2 = torch.log(torch.tensor(2.0)).item()
    doubled_then_shifted = compose([Affine(shift=1), Affine(scale=2)])
    shifted_then_doubled = compose([Affine(scale=2), Affine(shift=1)])
    assert doubled_then_shifted(Model(), BATCH).total.item() == pytest.approx(2 * log2 + 1)  # type: ignore[arg-type]
    assert shifted_then_doubled(Model(), BATCH).total.item() == pytest.approx(2 * (log2 + 1))  # type: ignore[arg-type]
    assert compose([])(Model(), BATCH).total.item() == pytest.approx(log2)  # type: ignore[arg-type]


def test_a_term_without_gradient_stops_training() -> None:
    with pytest.raises(UsageError, match="dead: is a loss term without a gradient"):
        check_terms(Loss(torch.tensor(1.0), {"dead": torch.tensor(1.0)}))
