from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xlt_training.data import load_split
from xlt_training.loop import model as models
from xlt_training.loop.method import Context
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example

from tests.xlt_training.contexts import context_of

LABELS = ["food", "sports", "weather"]


@pytest.fixture(params=["bert", "xlm-roberta"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(encoders: dict[str, Path], family: str) -> Classifier:
    """A fresh tiny classifier in eval mode: no dropout, so that numbers can be compared."""
    torch.manual_seed(0)
    made = models.build(str(encoders[family]), LABELS, 64)
    made.eval()
    return made


@pytest.fixture
def examples(toy_data: Path) -> list[Example]:
    """Six of different lengths: padding is there to be tripped over."""
    rows = load_split("sib200", toy_data, "train", "en")[:6]
    return [e.with_texts([" ".join([e.text] * (1 + i % 3))]) for i, e in enumerate(rows)]


@pytest.fixture
def batch(model: Classifier, examples: list[Example]) -> Batch:
    return model.batch(examples)


@pytest.fixture
def context(toy_data: Path) -> Context:
    return context_of(toy_data, steps=50)


def padded(batch: Batch, extra: int, pad_id: int) -> Batch:
    """The same batch with more padding on the right."""

    def wider(rows: torch.Tensor, value: int) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, extra), value=value)

    return Batch(
        input_ids=wider(batch.input_ids, pad_id),
        attention_mask=wider(batch.attention_mask, 0),
        labels=batch.labels,
        token_type_ids=None if batch.token_type_ids is None else wider(batch.token_type_ids, 0),
        words=None if batch.words is None else wider(batch.words, -1),
        examples=batch.examples,
    )
