"""The same logits in any company: held by our graphs, and a check that finds one that does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from xlt_training.exporting import gate, invariance

from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.runtime.graph_io import NOISE, PerturbedIO
from xlt_serve.runtime.runners import Runners
from xlt_serve.smoothing.noise import Noise
from xlt_serve.text.tokens import Piece

TEXTS = ["goal", "the bread was old", "rain and wind today with some snow", "Suppe", "score " * 20]


def pieces(folder: Path) -> list[Piece]:
    encoded = load(folder).encoder.encode(TEXTS)
    return [tokens.pieces[0] for tokens in encoded if not isinstance(tokens, Exception)]


def plain(folder: Path) -> invariance.Run:
    return gate.in_one_batch(Runners(bundles.load(folder), None, 2048).of("plain"))


def test_a_sound_graph_holds(bundle: Path) -> None:
    found = invariance.measure(plain(bundle), pieces(bundle), "fp32", most=64)
    assert found.holds
    assert found.largest_difference <= 1e-5
    assert found.texts == len(TEXTS)
    json.dumps(found.to_dict())


@pytest.mark.parametrize("fault", ["neighbours", "padding", "nan"])
def test_a_graph_that_listens_to_its_neighbours_is_found(bundle: Path, fault: str) -> None:
    sound = plain(bundle)

    def faulty(chosen: Sequence[Piece], columns: int) -> np.ndarray:
        out = sound(chosen, columns).copy()
        if fault == "neighbours" and len(chosen) > 1:
            out += 1e-3 * max(len(piece.ids) for piece in chosen)
        elif fault == "padding" and columns:
            out[..., 0] += 0.01
        elif fault == "nan" and len(chosen) > 3:
            out[0] = np.nan
        return out

    found = invariance.measure(faulty, pieces(bundle), "int8", most=64)
    assert not found.holds
    assert found.largest_difference > 1e-3


def test_batches_come_back_in_order(bundle: Path) -> None:
    run = plain(bundle)
    chosen = pieces(bundle)
    one_by_one = np.concatenate([run([piece], 0) for piece in chosen])
    small = Runners(bundles.load(bundle), None, budget=32)
    np.testing.assert_allclose(gate.graph_logits(small, "plain", chosen), one_by_one, atol=1e-5)


def test_the_noise_of_a_text_is_its_own() -> None:
    text, other = Piece([0, 5, 2], [0, 0, 0]), Piece([0, 6, 2], [0, 0, 0])
    io = PerturbedIO(PerturbedIO.inputs(False, width=4, extra=0), pad_id=1)
    noise = Noise("gaussian", 0.1)
    short, long = (io.feeds([io.row(text, noise)], padding)[NOISE][0] for padding in (0, 4))
    np.testing.assert_array_equal(short, long[:3])
    assert (long[3:] == 0).all()
    assert (io.feeds([io.row(other, noise)])[NOISE][0] != short).any()
    assert (io.feeds([io.row(text)])[NOISE] == 0).all()
