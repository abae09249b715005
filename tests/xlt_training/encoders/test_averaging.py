from __future__ import annotations

import torch
from torch import nn
from xlt_training.encoders.averaging import WeightAverage


def put(module: nn.Linear, value: float) -> None:
    with torch.no_grad():
        module.weight.fill_(value)


def test_a_short_run_has_the_plain_mean_and_a_long_one_forgets() -> None:
    module = nn.Linear(2, 1, bias=False)
    put(module, 0.0)
    average = WeightAverage(module, decay=0.9, every=1)
    average.start()
    for value in (3.0, 6.0):
        put(module, value)
        average.update()
    torch.testing.assert_close(average.copy_of(module).weight, torch.full((1, 2), 3.0))
    assert torch.equal(module.weight, torch.full((1, 2), 6.0))
    for _ in range(100):
        average.update()
    assert (average.copy_of(module).weight - 6).abs().max() < 0.01


def test_only_every_so_many_steps_count() -> None:
    module = nn.Linear(2, 1, bias=False)
    put(module, 0.0)
    average = WeightAverage(module, decay=0.9, every=5)
    average.start()
    put(module, 1.0)
    for _ in range(4):
        average.update()
    assert not average.copy_of(module).weight.any()
    average.update()
    assert average.copy_of(module).weight.any()


def test_its_state_can_be_loaded() -> None:
    module = nn.Linear(2, 1, bias=False)
    one, two = (WeightAverage(module, decay=0.9, every=2) for _ in range(2))
    for value in (1.0, 2.0, 3.0):
        put(module, value)
        one.update()
    two.load_state_dict(one.state_dict())
    two.update()
    one.update()
    assert torch.equal(one.copy_of(module).weight, two.copy_of(module).weight)
