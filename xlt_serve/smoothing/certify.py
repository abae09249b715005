"""The statistics of votes: what n noisy predictions of a text prove about the smoothed classifier.

g(x) = argmax over c of p_c, p_c = P(f(E(x) + δ) = c), is known through votes alone: independent
draws of f(E(x) + δ). A *label* here is a class index, a *count* the number of votes of a class, and
None is ABSTAIN. Every claim is wrong with probability at most ``alpha``.

All of it is computed in float64, and whatever is compared with a level leaves a margin (``MARGIN``,
``_tail_margin``) that is larger than the error of the computation: rounding makes no claim. What
rounding does to the noise itself is the business of ``noise``.

Papers: Clopper & Pearson 1934; Cohen, Rosenfeld & Kolter 2019 (gaussian noise, PREDICT, CERTIFY);
Lee et al. 2019 and Levine & Feizi 2021 (uniform noise); Ye, Gong & Liu 2020 (SAFER, synonyms);
Ville 1939, Robbins 1970, Howard et al. 2021, Waudby-Smith & Ramdas 2024 (anytime-valid bounds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

NORMAL = NormalDist()

MARGIN = 1e-6
"""What the logarithm of a capital must have beyond that of 1/alpha. Up to 100,000 votes its error is
below 1e-8, so that every decision is one of exact arithmetic too, at a level between alpha · (1 − 2e-6)
and alpha."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the votes say so far.

    ``label`` is None for ABSTAIN, and while ``stopped`` is false. ``draws`` are the votes that the
    decision rests on. ``lower_bound`` bounds the label's probability from below where a bound was
    asked for, else it is 0; ``certified`` says whether it exceeds the threshold asked for.
    """

    label: int | None
    stopped: bool
    draws: int
    lower_bound: float = 0.0
    certified: bool = False


# Exact binomial bounds


def lower_bound(successes: int, draws: int, alpha: float) -> float:
    """Clopper-Pearson: the p at which P(Binomial(draws, p) ≥ successes) = alpha.

    P(Binomial(n, p) ≥ k) = I_p(k, n−k+1), so this is the alpha-quantile of Beta(k, n−k+1).
    """
    _check_counts(successes, draws)
    _check_alpha(alpha)
    if successes == 0:
        return 0.0
    level = alpha * (1 - _tail_margin(draws))
    return _largest(lambda p: beta_cdf(p, successes, draws - successes + 1) <= level, 1.0)


def _tail_margin(draws: int) -> float:
    """More than the relative error of ``beta_cdf``, which grows with the number of draws."""
    return 4e-16 * (draws + 50)


def beta_cdf(x: float, a: float, b: float, rest: float | None = None) -> float:
    """I_x(a, b), the regularised incomplete beta function, by its continued fraction (DLMF 8.17).

    ``rest``: 1 − x, where it is known to more digits than x leaves of it.
    """
    rest = 1 - x if rest is None else rest
    if x <= 0 or rest <= 0:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - beta_cdf(rest, b, a, x)
    return math.exp(_log_beta_term(x, rest, a, b)) / a * _beta_fraction(x, a, b)


def _log_beta_term(x: float, rest: float, a: float, b: float) -> float:
    """log of x^a (1−x)^b / B(a, b), where ``rest`` is 1 − x.

    Differences of lgamma would lose ten digits at a + b = 1e5: Stirling's main terms are cancelled
    by hand, after Loader 2000, "Fast and accurate computation of binomial probabilities".
    """
    total = a + b
    return (
        0.5 * math.log(a / total * b / (2 * math.pi))
        + (_stirling_rest(total) - _stirling_rest(a) - _stirling_rest(b))
        + a * math.log(total * x / a)
        + b * math.log(total * rest / b)
    )


def _stirling_rest(z: float) -> float:
    """log Γ(z) − [(z − ½) log z − z + ½ log 2π]."""
    if z < 10:
        return math.lgamma(z) - ((z - 0.5) * math.log(z) - z + 0.5 * math.log(2 * math.pi))
    w = 1 / (z * z)
    return (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w / 1188)))) / z


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of DLMF 8.17.22, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = d
    for m in range(1, 100_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            return value
    raise ArithmeticError(f"the incomplete beta function did not converge at {(x, a, b)}")


def _largest(holds: Callable[[float], bool], high: float) -> float:
    """The largest p in [0, high] up to which ``holds`` is true, rounded towards 0: no claim grows."""
    low = 0.0
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


# A fixed number of draws (Cohen et al. 2019)


def predict(counts: Sequence[int], alpha: float) -> int | None:
    """PREDICT: the label with most votes, or None where it could be a tie with the runner-up.

    Answers unless the two-sided binomial test of (n1, n1 + n2, ½) has p > alpha.
    """
    _check_alpha(alpha)
    second, first = sorted(counts)[-2:]
    p_value = 2 * beta_cdf(0.5, first, second + 1) if first else 1.0
    level = alpha * (1 - _tail_margin(first + second))
    return list(counts).index(first) if p_value <= level else None


def certify(
    selection: Sequence[int], estimation: Sequence[int], alpha: float, threshold: float = 0.5
) -> Decision:
    """CERTIFY: n0 votes select the label, n fresh ones bound its probability; ABSTAIN up to ½."""
    label = max(range(len(selection)), key=selection.__getitem__)
    draws = sum(estimation)
    bound = lower_bound(estimation[label], draws, alpha)
    return _with_bound(label, sum(selection) + draws, bound, threshold)


def _with_bound(label: int, draws: int, bound: float, threshold: float) -> Decision:
    return Decision(label if bound > 0.5 else None, True, draws, bound, bound > threshold)


# Radii, and the probability that a radius asks for. With noise at the encoder's output the same
# formulas hold for its vector.


def gaussian_radius(sigma: float, p_top: float, p_second: float | None = None) -> float:
    """Noise N(0, σ²): g is constant for ‖δ‖₂ < σ/2 · (Φ⁻¹(p_top) − Φ⁻¹(p_second)) (Cohen, Thm. 1).

    ``p_top`` is a lower bound, ``p_second`` an upper bound for every other class, 1 − p_top where
    there is none: then the radius is σ·Φ⁻¹(p_top). The norm is over the whole perturbed tensor.
    """
    p_second = 1 - p_top if p_second is None else p_second
    if p_top <= p_second:
        return 0.0
    if p_top >= 1 or p_second <= 0:
        return math.inf
    return sigma / 2 * (NORMAL.inv_cdf(p_top) - NORMAL.inv_cdf(p_second))


def gaussian_threshold(sigma: float, radius: float) -> float:
    """The bound to exceed for an L2 radius: Φ(radius / σ)."""
    return NORMAL.cdf(radius / sigma)


def uniform_radius(half_width: float, p_top: float) -> float:
    """Noise uniform on [−b, b]: g is constant for ‖δ‖₁ < 2b(p_top − ½) (Lee; Levine & Feizi).

    The cubes around x and x + δ share at least 1 − ‖δ‖₁/2b of their volume, so no probability
    moves by more than ‖δ‖₁/2b.
    """
    return max(0.0, 2 * half_width * (p_top - 0.5))


def uniform_threshold(half_width: float, radius: float) -> float:
    """The bound to exceed for an L1 radius: ½ + radius / 2b; 1 at most, which no bound exceeds."""
    return min(1.0, 0.5 + radius / (2 * half_width))


# Synonyms (after SAFER)


def synonym_overlaps(words: Iterable[str], neighbours: Mapping[str, Iterable[str]]) -> list[float]:
    """q_w of each word that has neighbours: the least overlap of its draws with a neighbour's.

    P_w = {w} ∪ neighbours(w) as a set, all case-folded, the keys too. Uniform draws from P and P'
    overlap by |P ∩ P'| / max(|P|, |P'|), one minus their distance in total variation. In disjoint
    groups, where all members of P_w have the same P, every overlap is 1: a substitution does not
    change the draws at all.
    """

    def drawn(word: str) -> frozenset[str]:
        return frozenset({word, *(other.casefold() for other in neighbours.get(word, ()))})

    overlaps = []
    for word in words:
        own = drawn(word.casefold())
        others = [drawn(other) for other in own - {word.casefold()}]
        if others:
            overlaps.append(min(len(own & other) / max(len(own), len(other)) for other in others))
    return overlaps


def words_threshold(overlaps: Sequence[float], words: int) -> float:
    """The bound to exceed for ``words`` changed words: ½ + (1 − product of the smallest overlaps).

    The draws of the two texts differ by at most 1 − Πq in total variation, and so does every
    probability. At most 1, which no bound exceeds.
    """
    if words < 0:
        raise ValueError(f"words must be at least 0, was: {words}")
    return _overlap_threshold(math.prod(sorted(overlaps)[:words]))


def _overlap_threshold(product: float) -> float:
    # Of 100,000 factors the product has an error below 1e-10; a product of ones has none.
    return min(1.0, 0.5 + (1 - product) + (1e-9 if product < 1 else 0.0))


def certified_words(bound: float, overlaps: Sequence[float]) -> int:
    """The largest R such that neighbours may replace any R words: all of them in disjoint groups."""
    number, product = 0, 1.0
    for overlap in sorted(overlaps):
        product *= overlap
        if bound <= _overlap_threshold(product):
            break
        number += 1
    return number


# Anytime-valid: stop as soon as the question is answered. What both tests rest on is
#   Ville's inequality. A capital W ≥ 0 with W = 1 at the start that no bet is expected to increase
#   (a supermartingale) ever reaches 1/alpha with probability at most alpha.
# So a question may be asked after every vote. Votes must be independent draws, in an order that
# does not depend on them (the number of the draw); how they are cut into batches changes nothing.

# Pseudo-votes of the bets: the fewer, the earlier unanimous votes decide; the more, the sooner a
# label that loses some votes is decided. ¼ is about the most with which 12 do at 0.001.
PRIOR = 0.25


class LabelRace:
    """Which label? Stops when one label beats every other at level alpha; ABSTAIN at the limit.

    Before each vote, against every class A, we bet on the leader ℓ of the votes so far:
    θ = (n_ℓ + ¼) / (n_ℓ + n_A + ½) ≥ ½, and a vote for ℓ multiplies the capital by 2θ, one for A by
    2(1−θ), any other by 1. If p_A ≥ p_ℓ, the expected factor is 1 + (2θ−1)(p_ℓ−p_A) ≤ 1, whoever
    leads: the leader is known before the vote, so that its choice costs nothing but the votes
    that made it leader, and there is no union over classes.

    Theorem: P(a label is ever decided that does not beat every other, p_label > p_c) ≤ alpha.
    Proof. Let A have the largest p. (i) If it is the only one, bet against A while another class
    leads, nothing while A leads: W[A, A]. A wrong label is one other than A, and is decided only if
    W[A, A] ≥ 1/alpha. (ii) If B ≠ A has the same p, every label is wrong. Bet against A while
    another class leads, against B while A leads: W[A, B]. Any label is decided only if
    W[A, B] ≥ 1/alpha. Either W is a supermartingale; Ville's inequality. ∎

    We don't know A and B: label ℓ is decided when all W but W[ℓ, ℓ] have reached 1/alpha.
    """

    def __init__(self, classes: int, alpha: float, limit: int) -> None:
        _check_alpha(alpha)
        if classes < 2:
            raise ValueError(f"a race needs at least 2 classes, was: {classes}")
        self.alpha, self.limit = alpha, limit
        self._counts = np.zeros(classes, dtype=np.int64)
        self._log_gain = np.zeros((classes, classes))  # [leader, class bet against]
        self._decision = Decision(None, limit <= 0, 0)

    @property
    def counts(self) -> list[int]:
        """The votes of each class that the decision rests on."""
        return [int(count) for count in self._counts]

    def add(self, votes: Iterable[int]) -> Decision:
        """The decision after these votes too; those that come after it is made are ignored."""
        for vote in votes:
            if self._decision.stopped:
                break
            self._bet(vote)
            draws, label = self._decision.draws + 1, self._winner()
            self._decision = Decision(label, label is not None or draws >= self.limit, draws)
        return self._decision

    def _bet(self, vote: int) -> None:
        leader = self._counts.argmax()
        ahead = self._counts[leader] + PRIOR
        share = ahead / (ahead + self._counts + PRIOR)  # of the leader itself ½, which is no bet
        if vote == leader:
            self._log_gain[leader] += np.log(2 * share)
        else:
            self._log_gain[leader, vote] += math.log(2 * (1 - share[vote]))
        self._counts[vote] += 1

    def _winner(self) -> int | None:
        leader = self._counts.argmax()
        log_capital = self._log_gain.sum(axis=0)[:, None] + self._log_gain  # W[A, B]
        log_capital[leader, leader] = math.inf
        return int(leader) if log_capital.min() >= _needed(self.alpha) else None


@lru_cache(maxsize=256)
def fewest_votes(alpha: float) -> int:
    """The number of unanimous votes with which a LabelRace is decided, for any number of classes."""
    _check_alpha(alpha)
    votes, log_capital = 1, 0.0
    while log_capital < _needed(alpha):
        log_capital += math.log(2 * (votes + PRIOR) / (votes + 2 * PRIOR))
        votes += 1
    return votes


def sequential_lower_bound(successes: int, draws: int, alpha: float) -> float:
    """A lower bound of p that holds after every draw at once: P(ever bound > p) ≤ alpha.

    A one-sided beta mixture (Robbins 1970; Howard et al. 2021). Against a p, bet the share 1−u of
    the capital on a success: it multiplies the capital by u + (1−u)/p, a failure by u, and the
    expected factor is pu + (1−u) + (1−p)u = 1. Mix over u with density ¼u^(−¾):
      M(p) = ∫ (u + (1−u)/p)^k u^(n−k) ¼u^(−¾) du,
    a martingale if p is true. M decreases in p; the bound is where M = 1/alpha (Ville). It is at
    most k/n, as with any bet the capital against k/n has not grown.
    """
    _check_counts(successes, draws)
    _check_alpha(alpha)
    if successes == 0:
        return 0.0
    target = _needed(alpha)
    return _largest(lambda p: _log_mixture(successes, draws, p) >= target, successes / draws)


def _log_mixture(successes: int, draws: int, p: float) -> float:
    """log M(p). With 1−u = (θ−p)/(1−p) the integral is an incomplete beta function of 1 − p."""
    a, b = draws - successes + PRIOR, successes + 1
    tail = beta_cdf(1 - p, a, b, p)
    if tail == 0:
        return -math.inf
    return math.log(PRIOR * p * tail) - _log_beta_term(1 - p, p, a, b)


class ThresholdTest:
    """Is p_label > threshold (≥ ½) for some label? Stops at yes, at no, and at the limit.

    *Yes*, certified, when the leader's lower bound exceeds the threshold. Only votes that came
    after a label's first count towards its bound, at the level alpha · ¾ · (¼)^(k−1) if it was the
    k-th label to appear. P(any label's bound is ever wrong) ≤ alpha: given the past, the votes after
    the k-th label's first are fresh draws, its bound fails with at most that level, and the levels
    add up to alpha. So the first label pays for being chosen with one vote and a quarter of alpha,
    where a union over classes would leave alpha / classes.

    *No*, not certified, when the upper bound of the leader is below the threshold. Wrong with
    probability ≤ alpha as well: only one label can lie above ½, so only its bound has to hold.
    Also at once, without a draw, if unanimous votes up to the limit would not suffice.

    ``lower_bound`` is the leader's at stopping; above ½ it proves the label, else ABSTAIN.
    """

    def __init__(self, classes: int, threshold: float, alpha: float, limit: int) -> None:
        if not threshold >= 0.5:
            raise ValueError(f"threshold must be at least 0.5, was: {threshold}")
        self.threshold, self.alpha, self.limit = threshold, alpha, limit
        self.counts = [0] * classes
        self._first: dict[int, int] = {}  # label → number of its first vote, in order of appearance
        self._decision = Decision(None, not can_certify(threshold, alpha, limit), 0)

    def add(self, votes: Iterable[int]) -> Decision:
        """The decision after these votes too; those that come after it is made are ignored."""
        for vote in votes:
            if self._decision.stopped:
                break
            draws = self._decision.draws + 1
            self.counts[vote] += 1
            self._first.setdefault(vote, draws)
            self._decision = self._decide(draws)
        return self._decision

    def _decide(self, draws: int) -> Decision:
        leader = max(range(len(self.counts)), key=self.counts.__getitem__)
        level = _entry_level(self.alpha, list(self._first).index(leader))
        hits, fresh = self.counts[leader] - 1, draws - self._first[leader]
        misses = draws - self.counts[leader]
        yes = _rejects(self.threshold, hits, fresh, level)
        no = _rejects(1 - self.threshold, misses, draws, self.alpha)
        if not (yes or no or draws >= self.limit):
            return Decision(None, False, draws)
        bound = _bound_at(level, hits, fresh)
        return _with_bound(leader, draws, bound, self.threshold)


def bound_of(votes: Sequence[int], label: int, alpha: float) -> float:
    """A lower bound of p_label after these votes, in order, with a ThresholdTest's guarantee: it
    holds whichever label is asked about and whenever the votes stop."""
    if label not in votes:
        return 0.0
    before = dict.fromkeys(votes)  # labels in order of appearance
    first = list(votes).index(label)
    fresh = votes[first + 1 :]
    level = _entry_level(alpha, list(before).index(label))
    return _bound_at(level, sum(vote == label for vote in fresh), len(fresh))


def can_certify(threshold: float, alpha: float, limit: int) -> bool:
    """Whether ``limit`` unanimous votes would certify the threshold."""
    _check_alpha(alpha)
    level = _entry_level(alpha, 0)
    return threshold < 1 and limit > 1 and _rejects(threshold, limit - 1, limit - 1, level)


def _entry_level(alpha: float, labels_before: int) -> float:
    """0 where it is smaller than any float, after hundreds of labels: nothing is claimed there."""
    return alpha * 0.75 * 0.25**labels_before


def _bound_at(level: float, successes: int, draws: int) -> float:
    return sequential_lower_bound(successes, draws, level) if level > 0 else 0.0


def _needed(alpha: float) -> float:
    """The logarithm that a capital must reach."""
    return MARGIN - math.log(alpha)


def _rejects(p: float, successes: int, draws: int, alpha: float) -> bool:
    """Whether the sequential lower bound exceeds p, without computing it."""
    if successes <= p * draws or alpha <= 0:
        return False
    return _log_mixture(successes, draws, p) >= _needed(alpha)


def _check_counts(successes: int, draws: int) -> None:
    if not 0 <= successes <= draws:
        raise ValueError(f"successes must be between 0 and {draws} draws, was: {successes}")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be between 0 and 1 (exclusive), was: {alpha}")
