from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
from xlt_training.loop.method import Method
from xlt_training.loop.method_keys import method_keys, of_source
from xlt_training.methods import METHODS


def test_the_source_says_what_the_classes_say() -> None:
    real = {name: [each.name for each in fields(kind)] for name, kind in METHODS.items()}
    assert of_source() == real == method_keys()
    assert list(real) == list(of_source())


def test_a_method_of_the_running_program_is_known_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Own(Method):
        width: float = 1.0

    monkeypatch.setitem(METHODS, "own", Own)
    assert method_keys()["own"] == ["width"]
    assert "own" not in of_source()
