"""Which texts run together. Pure arithmetic on lengths."""

from __future__ import annotations

from collections.abc import Sequence

BUDGET, CPU_BUDGET = 4096, 512
"""Padded tokens in one run: enough to keep a GPU busy; on a CPU small enough for its caches (XLM-R-base
runs half as fast again in batches of 512 as in those of 4096)."""


def default_budget(provider: str) -> int:
    return CPU_BUDGET if provider == "cpu" else BUDGET


def plan(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in batches of similar length, each of at most ``budget`` padded tokens.

    Padded tokens are rows × longest row. An item longer than the budget runs alone. Every index
    occurs once; the plan depends on the lengths alone.
    """
    if budget < 1:
        raise ValueError(f"budget must be at least 1 token, was: {budget}")
    batches: list[list[int]] = []
    # Longest first: the first row of a batch is its width, and the largest allocation comes first.
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def padding_waste(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """The share of padded tokens that are padding."""
    padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in batches)
    real = sum(lengths[i] for batch in batches for i in batch)
    return 1 - real / padded if padded else 0.0
