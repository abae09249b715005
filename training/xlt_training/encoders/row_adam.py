"""Adam for a table of which a step uses few rows, as word embeddings are.

Dense Adam reads and writes every row and its two moments each step. Here a row that has no gradient
is left alone, its moments too ("lazy" Adam), and the bias correction counts a row's own updates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RowAdam:
    def __init__(
        self,
        table: nn.Parameter,
        betas: tuple[float, float],
        weight_decay: float,
        eps: float = 1e-8,
    ) -> None:
        self.table, self.betas, self.weight_decay, self.eps = table, betas, weight_decay, eps
        self.mean, self.square = torch.zeros_like(table), torch.zeros_like(table)
        self.count = torch.zeros(len(table))

    @torch.no_grad()
    def step(self, rows: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """``rows`` [n] distinct; ``gradient`` [n, width]."""
        first, second = self.betas
        mean = self.mean[rows].lerp_(gradient, 1 - first)
        square = self.square[rows].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        count = self.count[rows] + 1
        self.mean[rows], self.square[rows], self.count[rows] = mean, square, count
        size = (square / (1 - second**count)[:, None]).sqrt_().add_(self.eps)
        change = (mean / (1 - first**count)[:, None]).div_(size)
        change.add_(self.table[rows], alpha=self.weight_decay)
        self.table.index_add_(0, rows, change, alpha=-learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "square": self.square, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.mean, self.square, self.count = state["mean"], state["square"], state["count"]


@torch.no_grad()
def clip(dense: list[Tensor], rows: Tensor, limit: float) -> None:
    """Scale gradients, in place, so that their norm taken together is at most ``limit``."""
    norms = [*torch._foreach_norm(dense), rows.norm()]
    factor = limit / (torch.stack(norms).norm() + 1e-6)
    if factor < 1:
        torch._foreach_mul_(dense, float(factor))
        rows.mul_(factor)
