"""A running average of the weights: what is written out at any time is as good as after a cool-down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Exponential; updated every few steps, as it reads all weights."""

    def __init__(self, module: nn.Module, decay: float, every: int) -> None:
        self.live = list(module.parameters())
        self.decay, self.every = decay**every, every
        self.updates = 0
        self.kept: list[Tensor] = []

    def start(self) -> None:
        """From the weights as they are, unless a state was loaded."""
        if not self.kept:
            self.kept = [value.detach().clone() for value in self.live]

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step % self.every:
            return
        self.start()
        self.updates += 1
        # At first the plain mean: a fixed decay would hold on to where the run began.
        decay = min(self.decay, self.updates / (self.updates + 1))
        torch._foreach_lerp_(self.kept, [value.detach() for value in self.live], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module has the average inside the block, and its own weights after it."""
        own = [value.detach().clone() for value in self.live]
        try:
            self._put(self.kept)
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for live, value in zip(self.live, values, strict=True):
            live.copy_(value)

    def state_dict(self) -> dict[str, list[Tensor] | int]:
        return {"kept": self.kept, "updates": self.updates}

    def load_state_dict(self, state: dict[str, list[Tensor] | int]) -> None:
        kept, updates = state["kept"], state["updates"]
        assert isinstance(kept, list)
        assert isinstance(updates, int)
        self.kept, self.updates = kept, updates
