from __future__ import annotations

import pytest
import torch
from torch import nn
from xlt_training.encoders.row_adam import RowAdam, clip


def test_rows_that_are_always_used_go_as_adam_takes_them() -> None:
    torch.manual_seed(0)
    begin = torch.randn(6, 4)
    table, dense = nn.Parameter(begin.clone()), nn.Parameter(begin[:3].clone())
    rows = RowAdam(table, (0.9, 0.98), weight_decay=0.0)
    reference = torch.optim.Adam([dense], lr=0.01, betas=(0.9, 0.98))
    for _ in range(5):
        gradient = torch.randn(3, 4)
        rows.step(torch.tensor([0, 1, 2]), gradient.clone(), 0.01)
        dense.grad = gradient
        reference.step()
    torch.testing.assert_close(table[:3], dense)
    assert torch.equal(table[3:], begin[3:])
    assert not rows.mean[3:].any()


def test_a_row_counts_its_own_updates() -> None:
    """The first update of a row is a whole one, however late it comes."""
    table = nn.Parameter(torch.zeros(2, 3))
    rows = RowAdam(table, (0.9, 0.98), weight_decay=0.0)
    for _ in range(50):
        rows.step(torch.tensor([0]), torch.ones(1, 3), 0.01)
    rows.step(torch.tensor([1]), torch.ones(1, 3), 0.01)
    torch.testing.assert_close(table[1], torch.full((3,), -0.01))


def test_its_state_can_be_loaded() -> None:
    table, other = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
    one, two = (RowAdam(t, (0.9, 0.98), weight_decay=0.1) for t in (table, other))
    one.step(torch.tensor([1]), torch.ones(1, 3), 0.01)
    with torch.no_grad():
        other.copy_(table)
    two.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    for rows in (one, two):
        rows.step(torch.tensor([0, 1]), -torch.ones(2, 3), 0.01)
    assert torch.equal(table, other)


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping_takes_all_gradients_together(limit: float) -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.zeros(size)) for size in ((3, 4), (5,), (2, 4))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    clip(gradients[:2], gradients[2], limit)
    torch.nn.utils.clip_grad_norm_(parameters, limit)
    for given, parameter in zip(gradients, parameters, strict=True):
        torch.testing.assert_close(given, parameter.grad)
