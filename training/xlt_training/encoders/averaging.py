"""A running average of the weights: what is written out at any time is as good as after a cool-down."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


class WeightAverage:
    """Exponential; updated every few steps, as it reads all weights."""

    def __init__(self, module: nn.Module, decay: float, every: int) -> None:
        self.live = list(module.parameters())
        self.decay, self.every = decay**every, every
        self.calls, self.updates = 0, 0
        self.kept: list[Tensor] = []

    def start(self) -> None:
        """From the weights as they are, unless a state was loaded."""
        if not self.kept:
            self.kept = [value.detach().clone() for value in self.live]

    @torch.no_grad()
    def update(self) -> None:
        """To be called after every step."""
        self.calls += 1
        if self.calls % self.every:
            return
        self.start()
        self.updates += 1
        # At first the plain mean: a fixed decay would hold on to where the run began.
        decay = min(self.decay, self.updates / (self.updates + 1))
        torch._foreach_lerp_(self.kept, [value.detach() for value in self.live], 1 - decay)

    @torch.no_grad()
    def copy_of(self, module: Module) -> Module:
        """``module`` again, with the average for weights."""
        self.start()
        copied = copy.deepcopy(module)
        for value, kept in zip(copied.parameters(), self.kept, strict=True):
            value.copy_(kept)
        return copied

    def state_dict(self) -> dict[str, list[Tensor] | int]:
        return {"kept": self.kept, "updates": self.updates, "calls": self.calls}

    def load_state_dict(self, state: dict[str, list[Tensor] | int]) -> None:
        kept, updates, calls = state["kept"], state["updates"], state.get("calls", 0)
        assert isinstance(kept, list)
        assert isinstance(updates, int)
        assert isinstance(calls, int)
        self.kept, self.updates, self.calls = kept, updates, calls
