"""Every method on every family, single texts and pairs: it computes a loss, and padding is no part of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from xlt_training.data import load_split
from xlt_training.loop import fisher
from xlt_training.loop import model as models
from xlt_training.loop.method import Method, compose
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example
from xlt_training.methods import METHODS
from xlt_training.methods.ewc import EWC

from tests.xlt_training.contexts import context_of
from tests.xlt_training.methods.conftest import LABELS, padded
from xlt_serve.files.rows import read_rows

SIZED_DRAWS = {"noise", "adversarial"}
"""What they draw has the batch's shape: with more padding they draw other numbers. That what they do
spares padding has tests of its own."""


@pytest.fixture(params=["single", "pair"])
def data(
    request: pytest.FixtureRequest, toy_data: Path, tmp_path: Path
) -> tuple[Path, list[Example]]:
    """A data folder and six examples of one text or, each with its neighbour's as second, two."""
    rows = load_split("sib200", toy_data, "train", "en")[:6]
    rows = [e.with_texts([" ".join([e.text] * (1 + i % 2))]) for i, e in enumerate(rows)]
    if request.param == "single":
        return toy_data, rows
    for name in ("lexicons", "text"):
        (tmp_path / name).symlink_to(toy_data / name)
    for file in (toy_data / "sib200" / "mt").iterdir():
        lines = ["id\tengine\ttext\tpair"]
        lines += [f"{r['id']}\ttoy\t{r['text']}\t{r['text']}" for r in read_rows(file)]
        (tmp_path / "sib200" / "mt").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sib200" / "mt" / file.name).write_text("\n".join(lines) + "\n")
    return tmp_path, [
        Example(e.text, e.label, "en", pair=rows[i - 1].text, id=e.id) for i, e in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def fishers(
    encoders: dict[str, Path], toy_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    texts = (toy_data / "text" / "fr.txt").read_text().splitlines()
    out = {}
    for family, encoder in encoders.items():
        out[family] = tmp_path_factory.mktemp(family)
        fisher.save(out[family], "fr", fisher.compute(str(encoder), texts, sentences=5))
    return out


@pytest.fixture
def ready(
    request: pytest.FixtureRequest,
    encoders: dict[str, Path],
    family: str,
    data: tuple[Path, list[Example]],
    fishers: dict[str, Path],
) -> tuple[Method, Classifier, Batch]:
    """A method, a model that it is attached to, in eval mode, and a batch for it."""
    folder, examples = data
    name = request.getfixturevalue("name")
    method = EWC(str(fishers[family]), fisher=["fr"]) if name == "ewc" else METHODS[name]()
    torch.manual_seed(0)
    model = models.build(str(encoders[family]), LABELS, 64)
    context = context_of(folder, steps=50)
    examples = list(method.augment(examples, context))[-6:]
    method.attach(model)
    batch = model.batch(examples)
    method.prepare(model, [batch], context)
    model.eval()
    return method, model, batch


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_single_texts_and_pairs(
    name: str, ready: tuple[Method, Classifier, Batch]
) -> None:
    method, model, batch = ready
    model.train()
    loss = compose([method])(model, batch)
    loss.total.backward()
    assert torch.isfinite(loss.total)
    moved = [p.grad for p in model.parameters() if p.requires_grad and p.grad is not None]
    assert sum(gradient.abs().sum() for gradient in moved) > 0
    assert all(torch.isfinite(gradient).all() for gradient in moved)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in SIZED_DRAWS])
def test_padding_a_batch_further_changes_no_loss(
    name: str, ready: tuple[Method, Classifier, Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it where a method makes its own batches: of switched words, or of translations."""
    method, model, batch = ready
    pad, make = model.tokenizer.pad_token_id, model.batch
    losses = []
    for more in (0, 5):
        torch.manual_seed(0)
        model.step = 25
        wider = lambda *args, more=more, **kind: padded(make(*args, **kind), more, pad)  # noqa: E731
        monkeypatch.setattr(model, "batch", wider)
        losses.append(compose([method])(model, padded(batch, more, pad)))
    assert losses[0].terms.keys() == losses[1].terms.keys()
    for key, value in losses[0].terms.items():
        torch.testing.assert_close(losses[1].terms[key], value, atol=1e-5, rtol=1e-5)
