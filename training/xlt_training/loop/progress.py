"""The bar of a training run: rows done of all, the mean of each loss by its name, the time left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tqdm import tqdm
from transformers import ProgressCallback

EVERY = 0.5  # seconds between two looks at the losses, each of which waits for a GPU


def rows_after(steps: int, rows: int, a_step: int) -> int:
    """Rows that ``steps`` have seen, of ``rows`` an epoch; an epoch's last step has what is left."""
    epochs, more = divmod(steps, -(-rows // a_step))
    return epochs * rows + min(rows, more * a_step)


class Means:
    """The means of lists that grow, of which each value is read once."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def of(self, terms: Mapping[str, Sequence[torch.Tensor]]) -> dict[str, float]:
        for name, values in terms.items():
            if new := values[self._counts.get(name, 0) :]:
                self._sums[name] = self._sums.get(name, 0.0) + float(torch.stack(list(new)).sum())
                self._counts[name] = len(values)
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def clear(self) -> None:
        self._sums.clear()
        self._counts.clear()


class Bar(ProgressCallback):
    """``terms``: the losses since the last log, as the trainer keeps them; what is logged is
    ``Report``'s to say."""

    def __init__(self, terms: Mapping[str, Sequence[torch.Tensor]]) -> None:
        super().__init__()
        self.terms, self.means = terms, Means()
        self.rows = self.a_step = 1
        self.looked = float("-inf")

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any
    ) -> None:
        self.rows = len(train_dataloader.dataset)
        self.a_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        if state.is_world_process_zero:
            self.training_bar = tqdm(
                total=self._done(state.max_steps),
                initial=self._done(state.global_step),  # so that a resumed run's rate is its own
                unit=" rows",
                mininterval=EVERY,
                dynamic_ncols=True,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.training_bar is None:
            return
        if (now := time.monotonic()) - self.looked >= EVERY:
            self.looked = now
            losses = {n: v for n, v in self.terms.items() if not n.startswith("figure/")}
            shown = (f"{name} {mean:.4f}" for name, mean in self.means.of(losses).items())
            self.training_bar.set_postfix_str(", ".join(shown), refresh=False)
        self.training_bar.update(self._done(state.global_step) - self.training_bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:  # the trainer begins its lists anew
            self.means.clear()

    def _done(self, steps: int) -> int:
        return rows_after(steps, self.rows, self.a_step)
