"""Bounds against exact sums, radii against known probabilities, stopping against simulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xlt_serve.smoothing import certify
from xlt_serve.smoothing.certify import Decision, LabelRace, ThresholdTest

Ints = npt.NDArray[np.int64]

ALPHAS = (0.05, 0.001)
TRIALS = 20_000
MOST_MISSES = {0.05: 1_072, 0.001: 31}
levels = st.sampled_from([1e-6, 1e-3, 0.01, 0.05, 0.3])


@st.composite
def success_counts(draw: st.DrawFn, most: int = 2_000) -> tuple[int, int]:
    draws = draw(st.integers(1, most))
    return draw(st.integers(0, draws)), draws


# Exact binomial bounds


def tail(successes: int, draws: int, p: Fraction | Decimal) -> Fraction | Decimal:
    """P(Binomial(draws, p) ≥ successes), term by term."""
    term = math.comb(draws, successes) * p**successes * (1 - p) ** (draws - successes)
    total = term
    for k in range(successes, draws):
        term = term * (draws - k) / (k + 1) * (p / (1 - p))
        total += term
    return total


@pytest.mark.parametrize("alpha", [0.3, 0.05, 0.001, 1e-6])
@pytest.mark.parametrize("draws", [1, 2, 7, 40])
def test_lower_bound_is_where_the_exact_tail_is_alpha(draws: int, alpha: float) -> None:
    for successes in range(1, draws + 1):
        bound = Fraction(certify.lower_bound(successes, draws, alpha))
        below, above = bound * (1 - Fraction(1, 10**10)), bound * (1 + Fraction(1, 10**10))
        assert tail(successes, draws, below) < Fraction(alpha)
        assert above >= 1 or tail(successes, draws, above) > Fraction(alpha)


@pytest.mark.parametrize("alpha", [0.05, 1e-6])
@pytest.mark.parametrize("successes", [1, 300, 60_000, 99_999, 100_000])
def test_lower_bound_has_ten_digits_at_a_hundred_thousand_draws(
    successes: int, alpha: float
) -> None:
    with localcontext() as context:
        context.prec = 40
        bound = Decimal(certify.lower_bound(successes, 100_000, alpha))
        # P(X ≥ k) = 1 − P(X ≤ k − 1): the side with fewer terms; 40 digits leave room to subtract.
        mirrored = successes < 50_000

        def exact(p: Decimal) -> Decimal:
            if mirrored:
                return 1 - Decimal(tail(100_001 - successes, 100_000, 1 - p))
            return Decimal(tail(successes, 100_000, p))

        error = Decimal("1e-10")
        assert exact(bound * (1 - error)) < Decimal(alpha) < exact(bound * (1 + error))


def test_the_beta_distribution_is_the_exact_tail() -> None:
    for draws, p in itertools.product((5, 40, 90), (0.03, 0.5, 0.8)):
        for successes in range(1, draws + 1, 3):
            exact = float(tail(successes, draws, Fraction(p)))
            computed = certify.beta_cdf(p, successes, draws - successes + 1)
            assert computed == pytest.approx(exact, rel=2e-13)


def upper_bound(successes: int, draws: int, alpha: float) -> float:
    """Failures are successes of 1 − p: the other end of the same interval."""
    return 1 - certify.lower_bound(draws - successes, draws, alpha)


def sequential_upper_bound(successes: int, draws: int, alpha: float) -> float:
    return 1 - certify.sequential_lower_bound(draws - successes, draws, alpha)


def test_known_bounds() -> None:
    # Two-sided 95 % intervals as printed in tables (Clopper & Pearson 1934, Diem 1962).
    for successes, draws, low, high in [
        (0, 10, 0.0, 0.3085),
        (3, 10, 0.0667, 0.6525),
        (10, 20, 0.2720, 0.7280),
        (1, 100, 0.0003, 0.0545),
        (10, 10, 0.6915, 1.0),
    ]:
        assert certify.lower_bound(successes, draws, 0.025) == pytest.approx(low, abs=5e-5)
        assert upper_bound(successes, draws, 0.025) == pytest.approx(high, abs=5e-5)
    assert certify.lower_bound(100, 100, 0.001) == pytest.approx(0.001**0.01, rel=1e-14)
    assert certify.lower_bound(1, 500, 0.001) == pytest.approx(1 - 0.999 ** (1 / 500), rel=1e-11)
    assert certify.lower_bound(0, 0, 0.05) == 0
    assert upper_bound(0, 0, 0.05) == 1


def test_bounds_and_distribution_agree_with_scipy() -> None:
    special = pytest.importorskip("scipy.special")
    for draws in (3, 50, 1_000, 30_000):
        for successes in {1, draws // 3, draws // 2, draws - 1, draws}:
            for alpha in (0.05, 0.001, 1e-6):
                expected = special.betaincinv(successes, draws - successes + 1, alpha)
                assert certify.lower_bound(successes, draws, alpha) == pytest.approx(
                    expected, rel=1e-10
                )
    for a, b, x in [(0.25, 1, 0.3), (0.25, 900, 1e-5), (30.25, 71, 0.2), (5, 0.5, 0.99)]:
        assert certify.beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-11)
    assert (certify.beta_cdf(0, 2, 3), certify.beta_cdf(1, 2, 3)) == (0, 1)


@settings(deadline=None, max_examples=40)
@given(success_counts(), levels)
def test_bounds_enclose_the_share_and_are_monotone(counts: tuple[int, int], alpha: float) -> None:
    successes, draws = counts
    for lower, upper in [
        (certify.lower_bound, upper_bound),
        (certify.sequential_lower_bound, sequential_upper_bound),
    ]:
        bound = lower(successes, draws, alpha)
        assert 0 <= bound <= successes / draws <= upper(successes, draws, alpha) <= 1
        assert bound <= lower(successes + 1, draws + 1, alpha)
        assert bound >= lower(successes, draws + 1, alpha)
        assert bound <= lower(successes, draws, alpha * 2)
        if successes < draws:
            assert bound <= lower(successes + 1, draws, alpha)


@settings(deadline=None, max_examples=40)
@given(success_counts(), levels)
def test_a_bound_for_all_times_is_no_better_than_the_exact_one(
    counts: tuple[int, int], alpha: float
) -> None:
    # Clopper-Pearson is the best of all bounds that grow with the successes.
    assert certify.sequential_lower_bound(*counts, alpha) <= certify.lower_bound(*counts, alpha)


def test_bounds_refuse_what_they_cannot_mean() -> None:
    for bound in (certify.lower_bound, certify.sequential_lower_bound, upper_bound):
        with pytest.raises(ValueError, match="between 0 and 5 draws, was: "):
            bound(6, 5, 0.05)
        with pytest.raises(ValueError, match=r"alpha .* was: 1"):
            bound(2, 5, 1.0)


# A fixed number of draws


def test_predict_is_the_two_sided_binomial_test() -> None:
    for first in range(13):
        for second in range(first + 1):
            total = first + second
            ways = sum(math.comb(total, k) for k in range(first, total + 1))
            p_value = min(Fraction(1), 2 * Fraction(ways, 2**total))
            for alpha in (0.3, 0.05, 0.001):
                expected = 1 if p_value <= Fraction(alpha) else None
                assert certify.predict([second, first, 0], alpha) == expected


def test_predict_needs_eleven_votes() -> None:
    assert certify.predict([10, 0], 0.001) is None
    assert certify.predict([11, 0], 0.001) == 0
    assert certify.predict([0, 0], 0.001) is None


def test_certify_bounds_the_selected_label_by_fresh_votes() -> None:
    decision = certify.certify([3, 7, 0], [2, 98, 0], alpha=0.001, threshold=0.8)
    bound = certify.lower_bound(98, 100, 0.001)
    assert decision == Decision(1, True, 110, bound, certified=True)
    # The selection decides, even where the fresh votes are for another label.
    other = certify.certify([7, 3, 0], [2, 98, 0], alpha=0.001)
    assert other.label is None
    assert not other.certified
    assert not certify.certify([3, 7], [2, 98], alpha=0.001, threshold=0.95).certified


# Radii


def test_the_gaussian_radius_of_a_half_space_is_its_distance() -> None:
    rng = np.random.default_rng(0)
    for sigma in (0.3, 0.5, 2.0):
        weights, x, offset = rng.normal(size=9), rng.normal(size=9), rng.normal()
        distance = abs(weights @ x + offset) / np.linalg.norm(weights)
        top = NormalDist().cdf(distance / sigma)  # w·(x + δ) + offset is N(w·x + offset, σ²‖w‖²)
        assert certify.gaussian_radius(sigma, top) == pytest.approx(distance)
        assert certify.gaussian_radius(sigma, top, 1 - top) == pytest.approx(distance)
        assert certify.gaussian_threshold(sigma, distance) == pytest.approx(top)


def test_the_gaussian_radius_holds_for_three_classes_on_a_line() -> None:
    # Class 0 on (−∞, low], 1 on (low, high], 2 beyond: all probabilities are known at every x.
    sigma = 0.7

    def probabilities(x: float, low: float, high: float) -> list[float]:
        noise = NormalDist(x, sigma)
        return [noise.cdf(low), noise.cdf(high) - noise.cdf(low), 1 - noise.cdf(high)]

    for low, high, x in itertools.product((-1.0, -0.2), (0.3, 1.5), (-2.0, -0.4, 0.1, 0.9)):
        ordered = sorted(probabilities(x, low, high))
        label = int(np.argmax(probabilities(x, low, high)))
        wide = certify.gaussian_radius(sigma, ordered[2], ordered[1])
        assert certify.gaussian_radius(sigma, ordered[2]) <= wide
        for shift in np.linspace(-wide, wide, 41) * 0.999:
            assert np.argmax(probabilities(x + shift, low, high)) == label


def test_radii_at_the_edges() -> None:
    assert certify.gaussian_radius(1, 0.5) == certify.gaussian_radius(1, 0.2) == 0
    assert certify.gaussian_radius(1, 1.0) == math.inf
    assert certify.gaussian_radius(1, 0.4, 0.3) > 0  # a plurality is enough in the two-class form
    assert certify.uniform_radius(1, 0.4) == 0
    assert certify.uniform_threshold(1, 7) == 1
    # Cohen et al.: with 100,000 draws and alpha = 0.001 no radius exceeds about 3.8 σ.
    largest = certify.gaussian_radius(1, certify.lower_bound(100_000, 100_000, 0.001))
    assert largest == pytest.approx(3.811, abs=1e-3)


@given(st.floats(0.01, 5), st.floats(0.501, 0.999))
def test_thresholds_invert_radii(scale: float, p: float) -> None:
    radius = certify.gaussian_radius(scale, p)
    assert certify.gaussian_threshold(scale, radius) == pytest.approx(p)
    assert certify.uniform_threshold(scale, certify.uniform_radius(scale, p)) == pytest.approx(p)


def test_the_uniform_radius_is_tight_on_a_line_and_holds_on_a_grid() -> None:
    # Half-line at distance t: P = (b + t) / 2b, and the label flips at exactly t.
    assert certify.uniform_radius(2.0, (2.0 + 0.7) / 4.0) == pytest.approx(0.7)
    # f constant on unit cells, noise uniform on [−b, b]² with 2b = 5: at cell centres the smoothed
    # probability is the share of a 5 × 5 window. Blocks of one class make large radii.
    width, grid, rng, checked = 5, 25, np.random.default_rng(1), 0
    for _ in range(20):
        cells = np.kron(rng.integers(0, 3, (5, 5)), np.ones((5, 5), dtype=int))
        cells[rng.random(cells.shape) < 0.1] = 0
        windows = np.lib.stride_tricks.sliding_window_view(cells, (width, width))
        shares = np.stack([(windows == c).mean(axis=(2, 3)) for c in range(3)], axis=-1)
        for x, y in itertools.product(range(grid - width + 1), repeat=2):
            radius = certify.uniform_radius(width / 2, shares[x, y].max())
            for i, j in itertools.product(range(grid - width + 1), repeat=2):
                if 0 < abs(i - x) + abs(j - y) < radius - 1e-9:
                    checked += 1
                    assert shares[i, j].argmax() == shares[x, y].argmax()
    assert checked > 1_000


# Synonyms


def smoothed(text: Sequence[str], drawn: dict[str, list[str]], verdicts: dict) -> list[Fraction]:
    """The exact probabilities of both classes, by enumeration of all draws."""
    draws = list(itertools.product(*(drawn[word] for word in text)))
    ones = sum(verdicts[draw] for draw in draws)
    return [Fraction(len(draws) - ones, len(draws)), Fraction(ones, len(draws))]


def substitutions(text: Sequence[str], neighbours: dict[str, list[str]], most: int) -> list:
    choices = [[word, *neighbours[word]] for word in text]
    texts = itertools.product(*choices)
    return [t for t in texts if sum(a != b for a, b in zip(t, text, strict=True)) <= most]


def test_no_substitution_within_the_word_budget_flips_the_label() -> None:
    vocabulary, rng, covered = "abcdefg", np.random.default_rng(2), 0
    for _ in range(25):
        # Nearly a clique, as overlaps must be large for a certificate; one letter has no neighbours.
        neighbours = {
            word: [o for o in vocabulary[1:] if word != "a" and o != word and rng.random() < 0.9]
            for word in vocabulary
        }
        drawn = {word: [word, *neighbours[word]] for word in vocabulary}
        biased = rng.random()
        verdicts = {
            draw: int(rng.random() < biased) for draw in itertools.product(vocabulary, repeat=3)
        }
        for text in itertools.product(vocabulary, repeat=3):
            top = smoothed(text, drawn, verdicts)
            label = int(top[1] > top[0])
            overlaps = certify.synonym_overlaps(text, neighbours)
            words = certify.certified_words(float(max(top)), overlaps)
            if words and rng.random() < 0.1:
                covered += 1
                for other in substitutions(text, neighbours, words):
                    assert smoothed(other, drawn, verdicts)[label] > Fraction(1, 2)
    assert covered > 50


def test_in_disjoint_groups_every_substitution_is_certified() -> None:
    groups = ["ab", "cde", "f"]
    neighbours = {w: [o for o in group if o != w] for group in groups for w in group}
    drawn = {word: [word, *neighbours[word]] for word in "abcdef"}
    rng = np.random.default_rng(3)
    verdicts = {draw: int(rng.random() < 0.6) for draw in itertools.product("abcdef", repeat=3)}
    for text in itertools.product("abcdef", repeat=3):
        assert len(set(map(tuple, (smoothed(o, drawn, verdicts)
                                   for o in substitutions(text, neighbours, 3))))) == 1  # fmt: skip
        changeable = sum(word != "f" for word in text)
        overlaps = certify.synonym_overlaps(text, neighbours)
        assert overlaps == [1.0] * changeable
        assert certify.certified_words(0.51, overlaps) == changeable
        assert certify.certified_words(0.5, overlaps) == 0


def test_overlaps_are_of_case_folded_sets() -> None:
    neighbours = {"good": ["Fine", "fine", "GREAT"], "fine": ["good"], "straße": ["weg"]}
    # P(good) = {good, fine, great}; P(fine) = {fine, good}; P(great) = {great} alone.
    assert certify.synonym_overlaps(["GOOD", "the", "Fine"], neighbours) == [
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    ]
    assert certify.synonym_overlaps(["nothing"], neighbours) == []


def test_the_word_budget_takes_the_smallest_overlaps() -> None:
    overlaps = [0.9, 0.5, 1.0, 0.8]
    assert certify.words_threshold(overlaps, 0) == 0.5
    assert certify.words_threshold(overlaps, 1) == pytest.approx(1.0)
    assert certify.words_threshold([0.9, 0.8], 2) == pytest.approx(0.5 + 1 - 0.72)
    assert certify.words_threshold([0.9, 0.8], 5) == certify.words_threshold([0.9, 0.8], 2)
    assert certify.certified_words(0.75, [0.9, 0.8]) == 1
    assert certify.certified_words(0.79, [0.9, 0.8]) == 2
    assert certify.certified_words(1.0, [0.5, 0.9]) == 0
    with pytest.raises(ValueError, match="was: -1"):
        certify.words_threshold(overlaps, -1)


# Which label? A twin of LabelRace for many streams at once.


def race_twin(
    probabilities: Sequence[float], draws: int, alphas: Sequence[float], streams: Ints
) -> dict[float, tuple[Ints, Ints]]:
    """For each alpha, the label (−1: ABSTAIN) and the draws of every row of votes ``streams``."""
    classes, trials = len(probabilities), len(streams)
    counts = np.zeros((trials, classes))
    gain, against = np.zeros((trials, classes, classes)), np.zeros((trials, classes))
    labels = {alpha: np.full(trials, -1) for alpha in alphas}
    used = {alpha: np.full(trials, draws) for alpha in alphas}
    active = np.arange(trials)
    for step in range(draws):
        votes, rows = streams[active, step], np.arange(len(active))
        leader = counts.argmax(axis=1)
        ahead = counts[rows, leader][:, None] + 0.25
        share = ahead / (ahead + counts + 0.25)
        won, lost = rows[votes == leader], rows[votes != leader]
        factor = np.log(2 * share[won])
        gain[won, leader[won]] += factor
        against[won] += factor
        single = np.log(2 * (1 - share[lost, votes[lost]]))
        gain[lost, leader[lost], votes[lost]] += single
        against[lost, votes[lost]] += single
        counts[rows, votes] += 1
        leader = counts.argmax(axis=1)
        # Most rows fail already on the diagonal of W; the whole of it is made for the others.
        reached = against >= -math.log(max(alphas))
        reached[rows, leader] = True
        likely = np.flatnonzero(reached.all(axis=1))
        capital = against[likely][:, :, None] + gain[likely]
        capital[np.arange(len(likely)), leader[likely], leader[likely]] = np.inf
        strength, stream, label = capital.min(axis=(1, 2)), active[likely], leader[likely]
        for alpha in alphas:
            new = (strength >= -math.log(alpha)) & (labels[alpha][stream] < 0)
            labels[alpha][stream[new]] = label[new]
            used[alpha][stream[new]] = step + 1
        if (labels[min(alphas)][stream] >= 0).any():
            keep = labels[min(alphas)][active] < 0
            active, counts, gain, against = active[keep], counts[keep], gain[keep], against[keep]
        if not len(active):
            break
    return {alpha: (labels[alpha], used[alpha]) for alpha in alphas}


def draw_votes(probabilities: Sequence[float], trials: int, draws: int, seed: int) -> Ints:
    edges = np.cumsum(probabilities)[:-1]
    uniform = np.random.default_rng(seed).random((trials, draws), dtype=np.float32)
    return np.sum([uniform > edge for edge in edges], axis=0, dtype=np.int64)


def spread(top: float, classes: int) -> list[float]:
    return [top] + [(1 - top) / (classes - 1)] * (classes - 1)


@pytest.mark.parametrize("probabilities", [[0.5, 0.5], [0.6, 0.3, 0.1], spread(0.8, 7)])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_the_race_does_what_its_twin_does_in_any_batches(
    probabilities: list[float], batch: int
) -> None:
    streams = draw_votes(probabilities, trials=25, draws=150, seed=4)
    twin = race_twin(probabilities, 150, ALPHAS, streams)
    for alpha, (labels, used) in twin.items():
        for stream, label, draws in zip(streams.tolist(), labels, used, strict=True):
            race = LabelRace(len(probabilities), alpha, limit=150)
            for start in range(0, 150, batch):
                decision = race.add(stream[start : start + batch])
                if decision.stopped:
                    break
            assert decision == Decision(None if label < 0 else label, True, draws)


@pytest.mark.parametrize("classes", [2, 7, 18])
@pytest.mark.parametrize(("alpha", "votes"), [(0.001, 12), (0.05, 6)])
def test_unanimous_votes_decide_early(classes: int, alpha: float, votes: int) -> None:
    race = LabelRace(classes, alpha, limit=100)
    assert race.add([1] * (votes - 1)) == Decision(None, False, votes - 1)
    assert race.add([1] * 50) == Decision(1, True, votes)
    assert race.add([0] * 50) == Decision(1, True, votes)
    assert race.counts == [0, votes] + [0] * (classes - 2)
    assert certify.fewest_votes(alpha) == votes
    # No test that is right in a tie of two could answer two votes earlier: 2 · ½ⁿ ≤ alpha.
    assert votes <= math.ceil(math.log2(2 / alpha)) + 1


def test_a_race_abstains_at_its_limit() -> None:
    assert LabelRace(2, 0.001, limit=11).add([0] * 20) == Decision(None, True, 11)
    assert LabelRace(2, 0.001, limit=0).add([0]) == Decision(None, True, 0)
    assert LabelRace(3, 0.001, limit=9).add([0, 1, 2] * 2) == Decision(None, False, 6)
    with pytest.raises(ValueError, match="2 classes, was: 1"):
        LabelRace(1, 0.001, limit=9)
    with pytest.raises(ValueError, match="alpha"):
        LabelRace(2, 0.0, limit=9)


def test_no_bet_of_the_race_is_expected_to_gain_and_errors_are_exactly_rare() -> None:
    """All 3⁷ streams: the expected capitals of the proof, and the probability of a wrong label."""
    alpha, draws = 0.3, 7
    streams = list(itertools.product(range(3), repeat=draws))
    labels, capitals = [], []
    for stream in streams:
        race = LabelRace(3, alpha, draws)
        labels.append(race.add(stream).label)
        free = LabelRace(3, 1e-9, draws)  # never stops: the capital at a fixed time
        free.add(stream)
        capitals.append(free._log_gain.sum(axis=0)[:, None] + free._log_gain)
    votes = np.array(streams)
    for p in ([1 / 3] * 3, [0.5, 0.5, 0], [0.4, 0.4, 0.2], [0.4, 0.35, 0.25], [0.45, 0.1, 0.45]):
        weights = np.array(p)[votes].prod(axis=1)
        expected = (weights[:, None, None] * np.exp(capitals)).sum(axis=0)
        tops = [c for c in range(3) if p[c] == max(p)]
        for a, b in itertools.product(tops, repeat=2):
            assert expected[a, b] <= 1 + 1e-9
        wrong = [x is not None and (len(tops) > 1 or x != tops[0]) for x in labels]
        assert 0 < weights[wrong].sum() <= alpha


@pytest.mark.parametrize(
    ("probabilities", "draws"),
    [
        ([0.5, 0.5], 300),  # a tie: every answer is wrong
        ([0.495, 0.505], 200),
        ([1 / 3, 1 / 3, 1 / 3], 150),
        ([0.45, 0.45, 0.10], 200),
        ([0.335, 0.334, 0.331], 150),
        ([0.3, 0.3, *[0.08] * 5], 100),
        ([1 / 18] * 18, 60),
        ([0.1, 0.9], 100),
        (spread(0.9, 7), 100),
    ],
)
def test_wrong_labels_are_rare_over_all_stopping_times(
    probabilities: list[float], draws: int
) -> None:
    """Asked after every vote; wrong is a label that does not beat every other."""
    streams = draw_votes(probabilities, TRIALS, draws, seed=5)
    best = max(probabilities)
    right = probabilities.index(best) if probabilities.count(best) == 1 else -1
    for alpha, (labels, _) in race_twin(probabilities, draws, ALPHAS, streams).items():
        assert ((labels >= 0) & (labels != right)).sum() <= MOST_MISSES[alpha]


def adversarial_votes(classes: int, trials: int, draws: int, seed: int) -> Ints:
    """Votes of an adversary who sees all of them, and before each sets the probabilities as he likes,
    so long as no class has more than class 0: where another leads he makes it a tie of the two, where
    class 0 leads he takes votes from it by spreading them evenly."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((trials, classes), dtype=np.int64)
    out = np.zeros((trials, draws), dtype=np.int64)
    rows = np.arange(trials)
    for step in range(draws):
        rival = counts[:, 1:].argmax(axis=1) + 1
        behind = counts[rows, rival] <= counts[:, 0]
        votes = np.where(rng.random(trials) < 0.5, 0, rival)
        votes = np.where(behind, rng.integers(0, classes, trials), votes)
        out[:, step] = votes
        counts[rows, votes] += 1
    return out


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_no_adversary_has_a_wrong_label_decided(classes: int) -> None:
    streams = adversarial_votes(classes, TRIALS, 150, seed=13)
    for alpha, (labels, _) in race_twin([1 / classes] * classes, 150, ALPHAS, streams).items():
        assert (labels > 0).sum() <= MOST_MISSES[alpha]


def test_no_adversary_lifts_the_bound_above_the_largest_probability() -> None:
    """He gives the label its full p while that helps him, and less once he is behind."""
    for p, alpha in itertools.product((0.5, 0.8), ALPHAS):
        rng = np.random.default_rng(14)
        table = fewest_successes(p, 150, alpha)
        successes, missed = np.zeros(TRIALS, dtype=int), np.zeros(TRIALS, dtype=bool)
        for step in range(150):
            now = np.where(successes < p * step - 3, 0.3 * p, p)
            successes += rng.random(TRIALS) < now
            missed |= successes >= table[step + 1]
        assert missed.sum() <= MOST_MISSES[alpha]


def test_easy_texts_need_few_draws_and_hard_ones_are_decided() -> None:
    for classes, top, most in [(2, 0.99, 12), (7, 0.97, 12), (18, 0.97, 12), (7, 0.9, 20)]:
        streams = draw_votes(spread(top, classes), 1_000, 200, seed=6)
        labels, used = race_twin(spread(top, classes), 200, [0.001], streams)[0.001]
        assert np.median(used) <= most
        assert (labels == 0).all()
    streams = draw_votes([0.7, 0.3], 1_000, 600, seed=7)
    labels, used = race_twin([0.7, 0.3], 600, [0.001], streams)[0.001]
    assert (labels == 0).all()
    assert np.median(used) < 120


@pytest.mark.parametrize("top", [0.52, 0.6, 0.8, 0.95])
def test_the_race_agrees_with_the_fixed_procedure(top: float) -> None:
    draws, limit = 1_000, 1_000
    streams = draw_votes([top, 1 - top], 2_000, limit, seed=8)
    labels, used = race_twin([top, 1 - top], limit, [0.001], streams)[0.001]
    fresh = (draw_votes([top, 1 - top], 2_000, draws, seed=9) == 0).sum(axis=1)
    answers = {k: certify.predict([k, draws - k], 0.001) for k in set(fresh.tolist())}
    fixed = np.array([-1 if answers[k] is None else answers[k] for k in fresh.tolist()])
    contradictions = ((labels >= 0) & (fixed >= 0) & (labels != fixed)).sum()
    assert contradictions <= 2_000 * 0.001
    if top >= 0.6:  # both answer, and the race with fewer draws
        assert ((labels == 0) & (fixed == 0)).mean() > 0.9
        assert np.median(used) < draws * 0.6


# Certified at this radius?


@pytest.mark.parametrize("p", [0.1, 0.5, 0.93])
def test_the_mixture_is_the_integral_of_its_bets(p: float) -> None:
    # u = w⁴ turns the density ¼u^(−¾) into dw, a smooth integrand on [0, 1].
    nodes, weights = np.polynomial.legendre.leggauss(400)
    u = ((nodes + 1) / 2) ** 4
    for successes, draws in [(0, 0), (0, 3), (4, 4), (9, 12), (60, 61), (180, 200)]:
        bets = (u + (1 - u) / p) ** successes * u ** (draws - successes)
        capital = math.exp(certify._log_mixture(successes, draws, p))
        assert capital == pytest.approx(float((bets * weights).sum() / 2), rel=1e-9)


def test_the_mixture_is_a_martingale() -> None:
    for p, successes, draws in [(0.5, 3, 5), (0.8, 40, 45), (0.99, 0, 0), (0.2, 7, 7)]:
        now, hit, miss = (
            math.exp(certify._log_mixture(successes + more, draws + step, p))
            for more, step in [(0, 0), (1, 1), (0, 1)]
        )
        assert p * hit + (1 - p) * miss == pytest.approx(now)


def test_the_sequential_bound_is_where_the_mixture_is_one_over_alpha() -> None:
    for successes, draws in [(1, 1), (12, 12), (90, 100), (5, 300)]:
        bound = certify.sequential_lower_bound(successes, draws, 0.001)
        assert certify._log_mixture(successes, draws, bound) == pytest.approx(math.log(1_000))
        upper = sequential_upper_bound(draws - successes, draws, 0.001)
        assert upper == pytest.approx(1 - bound)


def fewest_successes(p: float, draws: int, level: float) -> Ints:
    """[draws + 1]: how many successes in n lift the sequential lower bound above p."""
    table, successes = [], 0
    for n in range(draws + 1):
        while successes <= n and not certify._rejects(p, successes, n, level):
            successes += 1
        table.append(successes)  # n + 1: not even n successes do
    return np.array(table)


@pytest.mark.parametrize(
    "probabilities", [[0.5, 0.5], [0.7, 0.3], [0.05, 0.95], [0.3, 0.36, 0.34], [0.01, 0.98, 0.01]]
)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_bounds_of_all_labels_hold_over_all_stopping_times(
    probabilities: list[float], alpha: float
) -> None:
    """A miss: at any time, the lower bound of any label, as ThresholdTest has it, is above p."""
    draws = 150
    streams = draw_votes(probabilities, TRIALS, draws, seed=10)
    hits = [streams == c for c in range(len(probabilities))]
    first = np.stack([np.where(h.any(1), h.argmax(1), draws) for h in hits], axis=1)
    ranks = first.argsort(axis=1, kind="stable").argsort(axis=1)
    missed = np.zeros(TRIALS, dtype=bool)
    for c, p in enumerate(probabilities):
        fresh = np.arange(draws) - first[:, c : c + 1]
        successes = hits[c].cumsum(axis=1) - 1
        for rank in range(len(probabilities)):
            rows = ranks[:, c] == rank
            table = fewest_successes(p, draws, certify._entry_level(alpha, rank))
            beyond = successes[rows] >= table[np.maximum(fresh[rows], 0)]
            missed[rows] |= (beyond & (fresh[rows] > 0)).any(axis=1)
    assert missed.sum() <= MOST_MISSES[alpha]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_certificate_is_rarely_refused_wrongly(alpha: float) -> None:
    """The upper bound at p itself, from all votes; the same for every p > ½ that is asked."""
    for p in (0.55, 0.9):
        misses = draw_votes([p, 1 - p], TRIALS, 150, seed=11).cumsum(axis=1)
        table = fewest_successes(1 - p, 150, alpha)
        assert (misses >= table[1:]).any(axis=1).sum() <= MOST_MISSES[alpha]


def test_the_threshold_test_stops_where_the_tables_say() -> None:
    alpha, threshold, limit = 0.01, 0.7, 120
    yes = [fewest_successes(threshold, limit, certify._entry_level(alpha, k)) for k in range(2)]
    no = fewest_successes(1 - threshold, limit, alpha)
    answers = {"yes": 0, "no": 0, "open": 0}
    for top in (0.99, 0.9, 0.7, 0.5):
        for stream in draw_votes([top, 1 - top], 40, limit, seed=12).tolist():
            decision = ThresholdTest(2, threshold, alpha, limit).add(stream)
            for n in range(1, limit + 1):
                counts = [stream[:n].count(0), stream[:n].count(1)]
                leader = int(counts[1] > counts[0])
                entry = stream.index(leader) + 1
                certified = counts[leader] - 1 >= yes[entry > 1][n - entry] and n > entry
                refused = n - counts[leader] >= no[n]
                if certified or refused:
                    break
            assert (decision.draws, decision.certified, decision.stopped) == (n, certified, True)
            level = certify._entry_level(alpha, int(entry > 1))
            bound = certify.sequential_lower_bound(counts[leader] - 1, n - entry, level)
            assert decision.lower_bound == bound
            assert decision.label == (leader if bound > 0.5 else None)
            answers["yes" if certified else "no" if refused else "open"] += 1
    assert min(answers.values()) > 5


@pytest.mark.parametrize(("threshold", "votes"), [(0.5, 13), (0.7, 23), (0.9, 75)])
def test_unanimous_votes_certify(threshold: float, votes: int) -> None:
    assert not certify.can_certify(threshold, 0.001, votes - 1)
    assert certify.can_certify(threshold, 0.001, votes)
    test = ThresholdTest(7, threshold, 0.001, limit=1_000)
    assert not test.add([4] * (votes - 1)).stopped
    decision = test.add([4] * 10)
    assert (decision.label, decision.draws, decision.certified) == (4, votes, True)
    assert threshold < decision.lower_bound < 1
    assert test.add([1]) is decision


def test_a_threshold_out_of_reach_costs_no_draw() -> None:
    unreachable = Decision(None, stopped=True, draws=0)
    assert ThresholdTest(2, 0.999, 0.001, limit=100).add([0] * 100) == unreachable
    assert ThresholdTest(2, 1.0, 0.001, limit=10**6).add([0]) == unreachable
    assert ThresholdTest(2, 0.5, 0.001, limit=0).add([0]) == unreachable
    with pytest.raises(ValueError, match=r"at least 0.5, was: 0.4"):
        ThresholdTest(2, 0.4, 0.001, limit=100)


def test_a_refused_certificate_may_still_prove_the_label() -> None:
    votes = ([0] * 4 + [1]) * 400
    decision = ThresholdTest(2, 0.95, 0.001, limit=2_000).add(votes)
    assert decision.stopped
    assert not decision.certified
    assert decision.draws < 150
    longer = ThresholdTest(2, 0.82, 0.001, limit=300).add(votes)
    assert (longer.label, longer.draws, longer.certified) == (0, 300, False)
    assert 0.5 < longer.lower_bound < 0.8
