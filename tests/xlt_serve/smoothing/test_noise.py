"""Noise that is addressed, not generated in turn."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve import manifest
from xlt_serve.errors import UsageError
from xlt_serve.smoothing.noise import (
    KINDS,
    LARGEST,
    SMALLEST,
    Kind,
    Noise,
    NoiseSource,
    Place,
    draw,
    stream_key,
)

GAUSSIAN, UNIFORM = Noise("gaussian", 0.3), Noise("uniform", 0.3)


@pytest.mark.parametrize("noise", [GAUSSIAN, UNIFORM])
def test_draws_have_the_distribution_they_claim(noise: Noise) -> None:
    values = np.concatenate([draw(7, n, (50, 8), noise).ravel() for n in range(250)])
    deviation = 0.3 if noise.kind == "gaussian" else 0.3 / math.sqrt(3)
    assert abs(values.mean()) < 5 * deviation / math.sqrt(len(values))
    assert values.std() == pytest.approx(deviation, rel=0.01)
    within = np.mean(np.abs(values) <= 0.15)
    expected = math.erf(0.5 / math.sqrt(2)) if noise.kind == "gaussian" else 0.5
    assert within == pytest.approx(expected, abs=0.01)
    if noise.kind == "uniform":
        assert np.abs(values).max() <= 0.3


@given(st.integers(0, 2**63), st.text(max_size=20), st.integers(0, 10**6))
def test_a_draw_is_a_function_of_seed_text_and_number(seed: int, text: str, number: int) -> None:
    key = stream_key(seed, text)
    one = draw(key, number, (3, 4), GAUSSIAN)
    np.testing.assert_array_equal(one, draw(key, number, (3, 4), GAUSSIAN))
    assert (one != draw(key, number + 1, (3, 4), GAUSSIAN)).any()
    assert (one != draw(stream_key(seed + 1, text), number, (3, 4), GAUSSIAN)).any()
    assert (one != draw(stream_key(seed, text + "x"), number, (3, 4), GAUSSIAN)).any()


def test_pairs_have_streams_of_their_own() -> None:
    keys = {stream_key(0, item) for item in ("ab", ("a", "b"), ("", "ab"), ("ab", ""), ("b", "a"))}
    assert len(keys) == 5
    stream_key(0, "lone surrogate \ud800")


def test_neighbouring_draws_do_not_overlap() -> None:
    """A long draw must not run into the next one's numbers."""
    long = draw(3, 0, (100_000,), UNIFORM)
    following = draw(3, 1, (16,), UNIFORM)
    assert not np.isin(following, long).all()


@pytest.mark.parametrize("key", [0, 7, 2**64 + 5, 2**128 - 1])
def test_a_source_addresses_what_a_new_generator_would_give(key: int) -> None:
    source = NoiseSource()
    for number in (3, 0, 10**6, 3):  # in any order, nothing is left over from the draw before
        expected = np.random.Philox(key=key, counter=number << 192).random_raw(9)
        np.testing.assert_array_equal(source.bits(key, number, 9).view(np.uint64), expected)


def test_gaussian_values_are_normal_and_pairs_of_them_independent() -> None:
    """Box-Muller makes two values of the same radius: they must not show it."""
    stats = pytest.importorskip("scipy.stats")
    values = draw(11, 0, (2, 100_000), Noise("gaussian", 1.0))
    for row in values:
        assert stats.kstest(row, "norm").pvalue > 1e-4
    for power in (1, 2, 3):
        assert abs(np.corrcoef(values[0] ** power, values[1] ** power)[0, 1]) < 0.015
    tail = np.mean(np.abs(values) > 3)
    assert tail == pytest.approx(math.erfc(3 / math.sqrt(2)), rel=0.15)
    assert np.isfinite(values).all()


@pytest.mark.parametrize("shape", [(1,), (3,), (5, 7), (2, 8)])
def test_a_draw_of_any_size_is_filled(shape: tuple[int, ...]) -> None:
    for noise in (GAUSSIAN, UNIFORM):
        out = np.full(shape, np.nan, dtype=np.float32)
        NoiseSource().fill(5, 6, noise, out)
        assert np.isfinite(out).all()
        np.testing.assert_array_equal(out, draw(5, 6, shape, noise))
        assert len(np.unique(out)) == out.size


def test_what_is_no_noise_is_refused() -> None:
    for kind, scale in (("laplace", 1.0), ("gaussian", 0.0), ("uniform", float("nan"))):
        with pytest.raises(UsageError, match="noise"):
            Noise(kind, scale)  # type: ignore[arg-type]
    for scale in (5e-324, 1e20, 1e308, float("inf")):
        with pytest.raises(UsageError, match="between 1e-06 and 10000 where the graph is fp32"):
            Noise("gaussian", scale)
    with pytest.raises(UsageError, match="mixed weights: certifies nothing"):
        Noise("gaussian", 0.1, precision="mixed")
    for scale in (1e-3, 1e3):  # float16 would lose it, or overflow
        with pytest.raises(UsageError, match=r"between 0\.01 and 100 where the graph is fp16"):
            Noise("gaussian", scale, precision="fp16")


@pytest.mark.parametrize("scale", [SMALLEST, LARGEST])
@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_and_the_largest_noise_are_noise(kind: Kind, scale: float) -> None:
    """No square of a scale underflows or overflows on the way."""
    values = draw(7, 0, (100_000,), Noise(kind, scale)).astype(np.float64) / scale
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(1 if kind == "gaussian" else 1 / math.sqrt(3), rel=0.01)


def test_a_manifest_may_say_what_noise_may_be() -> None:
    assert (get_args(Place), KINDS) == (manifest.PLACES, manifest.KINDS)
    assert manifest.SCALES == (SMALLEST, LARGEST)


def test_noise_that_rounding_drowns_proves_nothing() -> None:
    assert Noise("gaussian", 1e-6).changed > 0.4
    assert Noise("gaussian", 1e-6).radius(0.99) == 0
    assert Noise("gaussian", 1e-6).threshold(1e-9) > 0.9
    assert Noise("gaussian", 0.1, precision="fp16").radius(0.9) < Noise("gaussian", 0.1).radius(0.9)
    assert Noise("gaussian", 0.1, precision="int8").radius(0.9) == pytest.approx(0.1215, rel=0.01)
