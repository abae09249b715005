"""The real engines, or skips that say why they are not here."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from xlt_serve.translation.apertium import Apertium, installed


@pytest.fixture(scope="session")
def opus_zh() -> Path:
    """The folder of a real OPUS-MT model, Chinese to English."""
    folder = (
        Path(os.environ.get("XLT_TRANSLATION_MODELS", ROOT / "build" / "translators")) / "zh-en"
    )
    if importlib.util.find_spec("ctranslate2") is None:
        pytest.skip("ctranslate2 is not installed (pip install 'xlt-serve[translate]')")
    if not folder.is_dir():
        pytest.skip(f"no OPUS-MT model: {folder} is not there (make translators)")
    return folder


@pytest.fixture
def apertium() -> Iterator[Apertium]:
    if shutil.which("apertium-wblank-mode") is None or "spa-eng" not in installed():
        pytest.skip("Apertium es-en is not installed (apt install apertium apertium-eng-spa)")
    engine = Apertium()
    yield engine
    engine.close()
