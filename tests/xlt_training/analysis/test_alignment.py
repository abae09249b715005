from __future__ import annotations

import numpy as np
import pytest
from xlt_training.analysis.alignment import linear_cka, retrieval_accuracy


def test_cka_does_not_see_rotation_scale_and_shift() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 10))
    rotation, _ = np.linalg.qr(generator.normal(size=(10, 10)))
    assert linear_cka(x, 3 * x @ rotation + 5) == pytest.approx(1)
    assert linear_cka(x, generator.normal(size=(200, 10))) < 0.2


def test_cka_equals_its_kernel_form() -> None:
    """HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) with centred Gram matrices: another way to the number."""
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(30, 4)), generator.normal(size=(30, 6))
    centre = np.eye(30) - 1 / 30
    k, m = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    expected = (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
    assert linear_cka(x, y) == pytest.approx(expected)


def test_retrieval() -> None:
    x = np.eye(4)
    assert retrieval_accuracy(x * [[1], [2], [3], [4]], x) == 1
    assert retrieval_accuracy(x[[1, 0, 2, 3]], x) == 0.5
