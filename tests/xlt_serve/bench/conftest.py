from __future__ import annotations

from pathlib import Path

import pytest

from xlt_serve.bundle import DEFAULT, MODELS


@pytest.fixture(scope="session")
def bundle() -> Path:
    """The shipped one: nothing has to be trained for these tests."""
    return MODELS / DEFAULT
