"""No claim is larger than exact arithmetic allows: against mpmath and fractions."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import mpmath
import pytest
from mpmath import mpf

from xlt_serve.modes.base import Context
from xlt_serve.modes.smoothed import Smoothing, chosen_noise
from xlt_serve.smoothing import certify
from xlt_serve.smoothing.certify import LabelRace
from xlt_serve.smoothing.noise import KINDS, SMALLEST, Kind, Noise
from xlt_serve.smoothing.votes import LEAST_ALPHA, MOST_SAMPLES

CASES = 1500


@pytest.fixture(autouse=True)
def _digits() -> None:
    mpmath.mp.dps = 28


def beta_cdf(x: mpf, a: mpf, b: mpf) -> mpf:
    """I_x(a, b) as the series x^a (1−x)^b / (a B(a, b)) · Σ Π (a+b+i) x / (a+1+i), all of whose terms
    are positive. Another formula than the one under test."""
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    term = total = mpf(1)
    i = 0
    while term > total * mpf(10) ** -20:
        term *= (a + b + i) * x / (a + 1 + i)
        total += term
        i += 1
    log_beta = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
    front = mpmath.exp(a * mpmath.log(x) + b * mpmath.log(1 - x) - log_beta)
    return front / a * total


def log_mixture(successes: int, draws: int, p: mpf) -> mpf:
    a, b = draws - successes + mpf(1) / 4, mpf(successes + 1)
    log_beta = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
    front = a * mpmath.log(1 - p) + b * mpmath.log(p) - log_beta
    return mpmath.log(p * beta_cdf(1 - p, a, b) / 4) - front


def cases(count: int, largest: int = MOST_SAMPLES) -> list[tuple[int, int, float]]:
    """(successes, draws, alpha) of all sizes, many of them near unanimity."""
    generator = random.Random(0)
    out = [(1, 1, 0.5), (1, 1, LEAST_ALPHA), (largest, largest, LEAST_ALPHA)]
    while len(out) < count:
        draws = int(math.exp(generator.uniform(0, math.log(largest))))
        missed = int(math.exp(generator.uniform(0, math.log(draws + 1)))) - 1
        successes = generator.choice([draws - missed, 1 + missed])
        alpha = math.exp(generator.uniform(math.log(LEAST_ALPHA), math.log(0.9)))
        if 0 < successes <= draws:
            out.append((successes, draws, alpha))
    return out


def test_no_bound_is_above_the_exact_one() -> None:
    """Also by how much: the margin is far from all that a user could see."""
    for successes, draws, alpha in cases(CASES, 3_000):
        bound = mpf(certify.lower_bound(successes, draws, alpha))
        exact = beta_cdf(bound, mpf(successes), mpf(draws - successes + 1))
        assert mpf(alpha) * (1 - mpf("1e-11")) < exact <= mpf(alpha), (successes, draws, alpha)


def test_no_sequential_bound_is_above_the_exact_one() -> None:
    for successes, draws, alpha in cases(CASES, 3_000):
        bound = mpf(certify.sequential_lower_bound(successes, draws, alpha))
        if bound == 0:
            continue
        beyond = log_mixture(successes, draws, bound) + mpmath.log(mpf(alpha))
        assert beyond >= 0, (successes, draws, alpha)
        if bound < mpf(successes) / draws * (1 - mpf("1e-9")):
            assert beyond < 3 * certify.MARGIN, (successes, draws, alpha)


@pytest.mark.parametrize("missed", [700, 40_000])
def test_nor_at_the_most_draws(missed: int) -> None:
    draws = MOST_SAMPLES
    for alpha in (LEAST_ALPHA, 0.001):
        bound = mpf(certify.lower_bound(draws - missed, draws, alpha))
        assert beta_cdf(bound, mpf(draws - missed), mpf(missed + 1)) <= mpf(alpha)
        bound = mpf(certify.sequential_lower_bound(draws - missed, draws, alpha))
        assert log_mixture(draws - missed, draws, bound) >= -mpmath.log(mpf(alpha))


def test_the_error_of_a_capital_is_far_below_the_margin() -> None:
    for successes, draws, alpha in cases(CASES // 3, 3_000):
        p = certify.sequential_lower_bound(successes, draws, alpha)
        if p > 0:
            error = certify._log_mixture(successes, draws, p) - log_mixture(
                successes, draws, mpf(p)
            )
            assert abs(error) < certify.MARGIN / 1000


def test_a_label_is_predicted_only_where_fractions_allow_it() -> None:
    """At levels that are the test's own p-values, as rounded."""
    answered = 0
    for first in range(1, 120):
        for second in range(min(first, 40)):
            draws = first + second
            tail = sum(math.comb(draws, votes) for votes in range(first, draws + 1))
            exact = Fraction(2 * tail, 2**draws)
            computed = 2 * certify.beta_cdf(0.5, first, second + 1)
            for alpha in (computed, float(exact), computed * (1 + 1e-12)):
                if 0 < alpha < 1 and certify.predict([first, second], alpha) is not None:
                    answered += 1
                    assert exact <= Fraction(alpha), (first, second)
    assert answered > 1000  # the margin is far from all that a user could see


def test_a_race_is_decided_only_where_fractions_decide_it() -> None:
    """The capitals of exact bets, on streams that come close to the level again and again."""
    generator = random.Random(1)
    for _ in range(150):
        classes, share = generator.choice([2, 3]), generator.uniform(0.5, 0.95)
        alpha = 10 ** -generator.uniform(0.3, 12)
        votes = [
            0 if generator.random() < share else generator.randrange(classes) for _ in range(120)
        ]
        decision = LabelRace(classes, alpha, 120).add(votes)
        if decision.label is not None:
            assert least_capital(votes[: decision.draws], classes) >= 1 / Fraction(alpha)


def least_capital(votes: list[int], classes: int) -> Fraction:
    """The smallest W[A, B] of ``LabelRace`` but for the leader's own."""
    counts = [0] * classes
    gain = [[Fraction(1)] * classes for _ in range(classes)]
    for vote in votes:
        leader = counts.index(max(counts))
        ahead = counts[leader] + Fraction(1, 4)
        for against in range(classes):
            share = ahead / (ahead + counts[against] + Fraction(1, 4))
            if against != leader and vote == leader:
                gain[leader][against] *= 2 * share
            elif against != leader and vote == against:
                gain[leader][against] *= 2 * (1 - share)
        counts[vote] += 1
    last = counts.index(max(counts))
    whole = [
        math.prod((gain[c][a] for c in range(classes)), start=Fraction(1)) for a in range(classes)
    ]
    return min(
        whole[a] * gain[a][b]
        for a in range(classes)
        for b in range(classes)
        if (a, b) != (last, last)
    )


@pytest.mark.parametrize("precision", ["fp32", "int8", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
def test_radii_and_thresholds_are_on_the_safe_side(kind: Kind, precision: str) -> None:
    generator = random.Random(2)
    for _ in range(1000):
        scale = 10 ** generator.uniform(-2 if precision == "fp16" else math.log10(SMALLEST), 2)
        noise = Noise(kind, scale, precision=precision)
        bound = generator.choice([generator.uniform(0.5, 1), 1 - 10 ** generator.uniform(-5, -1)])
        assert noise.radius(bound) <= exact_radius(noise, bound)
        asked = scale * generator.uniform(0, 3)
        needed = noise.threshold(asked)
        if needed < 1:
            assert exact_radius(noise, needed) >= asked
            assert noise.radius(needed) == pytest.approx(asked, rel=1e-6, abs=1e-8 * scale)


def exact_radius(noise: Noise, bound: float) -> mpf:
    lost = mpf(noise.changed)
    top, half = mpf(bound) - lost, mpf(1) / 2 + lost
    if top <= half:
        return mpf(0)
    if noise.kind == "uniform":
        return 2 * mpf(noise.scale) * (top - half)
    return (
        mpf(noise.scale)
        * mpmath.sqrt(2)
        * (mpmath.erfinv(2 * top - 1) - mpmath.erfinv(2 * half - 1))
    )


def test_overlaps_of_many_words_are_on_the_safe_side() -> None:
    generator = random.Random(3)
    for _ in range(300):
        sizes = [generator.randint(2, 400) for _ in range(generator.randint(1, 300))]
        overlaps = [(size - 1) / size for size in sizes]
        exact = sorted(Fraction(size - 1, size) for size in sizes)
        for words in (1, len(sizes) // 2, len(sizes)):
            needed = Fraction(3, 2) - math.prod(exact[:words], start=Fraction(1))
            assert certify.words_threshold(overlaps, words) >= min(needed, Fraction(1))
        bound = generator.uniform(0.5, 1)
        found = certify.certified_words(bound, overlaps)
        passes = [bound > certify.words_threshold(overlaps, n) for n in range(1, len(sizes) + 1)]
        assert found == (passes.index(False) if False in passes else len(passes))


def test_what_used_to_leave_the_floats() -> None:
    """A probability too small for 1 − p to show it, and the level of the six-hundredth label."""
    assert 0 < certify.sequential_lower_bound(1, 4, 5e-29) < 1e-28
    votes = [*range(600), *[599] * 50]
    assert certify.bound_of(votes, 599, 0.001) == 0
    decision = certify.ThresholdTest(600, 0.5, 0.001, len(votes)).add([*range(600), *[599] * 49])
    assert not decision.certified


def test_the_cache_of_fewest_votes_is_bounded() -> None:
    for number in range(1, 2000):
        certify.fewest_votes(number / 4000)
    assert certify.fewest_votes.cache_info().currsize <= 256


def test_products_that_tensorrt_rounds_to_tf32_have_the_margin_of_fp16() -> None:
    """Its mantissa is as long. The certificates of fp32 would claim too much."""

    def noise(precision: str, provider: str) -> Noise:
        graphs = {"perturbed": SimpleNamespace(precision=precision)}
        bundle: Any = SimpleNamespace(manifest=SimpleNamespace(graphs=graphs, noise={}))
        nothing: Any = None
        context = Context(bundle, nothing, nothing, "x", provider)
        return replace(chosen_noise(context, Smoothing(noise="gaussian", scale=0.1))[0], tokens=9)

    half, exact = noise("fp16", "cuda"), noise("fp32", "cuda")
    assert noise("fp32", "cpu") == exact
    assert noise("fp16", "tensorrt") == half
    assert noise("fp32", "tensorrt").changed == half.changed > exact.changed
    assert noise("fp32", "tensorrt").radius(0.9) == half.radius(0.9) < exact.radius(0.9)
