from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from xlt_training.analysis.vectors import SentenceEncoder
from xlt_training.loop import model as models
from xlt_training.loop.types import Example
from xlt_training.methods.adapters import Adapters
from xlt_training.methods.soft_prompt import SoftPrompt

TEXTS = ["rain and snow", "the team saw a goal in the town", "bread"]


@pytest.mark.parametrize("name", ["adapters", "soft_prompt"])
@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_vectors_are_those_that_the_checkpoint_classifies_by(
    encoders: dict[str, Path], tmp_path: Path, family: str, name: str
) -> None:
    torch.manual_seed(0)
    made = models.build(str(encoders[family]), ["a", "b"], 32)
    method = {"adapters": Adapters(size=4), "soft_prompt": SoftPrompt(length=3)}[name]
    method.attach(made)
    with torch.no_grad():
        for parameter in made.slots.parameters():
            parameter.normal_()
    made.eval()
    entry = {"name": name, **vars(method)}
    said = models.Description("x", False, ["a", "b"], "en", 32, {"stages": [{"methods": [entry]}]})
    models.save(tmp_path, made, said)
    found = SentenceEncoder(tmp_path).encode(TEXTS)
    with torch.inference_mode():
        expected = torch.cat(
            [made(made.batch([Example(text, "a", "en")])).last[:, 0] for text in TEXTS]
        )
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)
    bare = SentenceEncoder(encoders[family]).encode(TEXTS)
    assert bare.shape == found.shape
    assert abs(bare - found).max() > 0.1
