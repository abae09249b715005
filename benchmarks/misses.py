"""How often the bounds miss, in simulated votes: at most alpha, whenever one looks."""

from __future__ import annotations

from typing import Any

import numpy as np

from xlt_serve.smoothing import certify

ALPHAS = (0.001, 0.05)
RACES = {
    "tie of two": [0.5, 0.5],
    "close": [0.48, 0.52],
    "tie of three": [1 / 3] * 3,
    "seven labels, two tied": [0.3, 0.3, *[0.08] * 5],
    "easy": [0.9, *[0.1 / 6] * 6],
}
SHARES = (0.5, 0.7, 0.95)


def simulate(trials: int, draws: int = 100) -> dict[str, Any]:
    """Misses in ``trials`` of each kind. A bound misses if it is ever above the truth; a race if it
    ever names a label that does not beat every other."""
    out: dict[str, Any] = {"trials": trials}
    for alpha in ALPHAS:
        rows: dict[str, int] = {}
        for p in SHARES:
            votes = np.random.default_rng(0).random((trials, draws)) < p
            fixed = fewest(lambda k, n, a=alpha: certify.lower_bound(k, n, a), p, draws, [draws])
            rows[f"fixed bound, p = {p}"] = int((votes.sum(axis=1) >= fixed[draws]).sum())
            always = fewest(
                lambda k, n, a=alpha: certify.sequential_lower_bound(k, n, a),
                p,
                draws,
                range(1, draws + 1),
            )
            edge = np.array([always[n] for n in range(1, draws + 1)])
            rows[f"bound at all times, p = {p}"] = int(
                (votes.cumsum(axis=1) >= edge).any(axis=1).sum()
            )
        for name, probabilities in RACES.items():
            rows[f"race: {name}"] = wrong_labels(probabilities, trials, draws, alpha)
        out[str(alpha)] = rows
    return out


def fewest(bound: Any, p: float, draws: int, times: Any) -> dict[int, int]:
    """For each number of votes, how many successes lift the bound above p (one more: none do)."""
    out, successes = {}, 0
    for n in times:
        while successes <= n and bound(successes, n) <= p:
            successes += 1
        out[n] = successes
    return out


def wrong_labels(probabilities: list[float], trials: int, draws: int, alpha: float) -> int:
    best = max(probabilities)
    right = probabilities.index(best) if probabilities.count(best) == 1 else None
    streams = np.random.default_rng(1).choice(
        len(probabilities), (trials, draws), p=np.array(probabilities) / sum(probabilities)
    )
    wrong = 0
    for stream in streams.tolist():
        label = certify.LabelRace(len(probabilities), alpha, draws).add(stream).label
        wrong += label is not None and label != right
    return wrong
