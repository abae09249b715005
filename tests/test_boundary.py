"""Serving must not drag the training stack in."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FORBIDDEN = {"torch", "transformers", "xlt_training", "optimum", "datasets", "onnx"}


@pytest.mark.parametrize("module", ["xlt_serve", "xlt_serve.service", "xlt_serve.cli.main"])
def test_a_fresh_process_that_serves_has_no_training_stack(module: str) -> None:
    code = f"import sys, {module}; print(sorted({FORBIDDEN!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"BENTOML_DO_NOT_TRACK": "true"},
        check=True,
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_the_public_names_are_these() -> None:
    import xlt_serve

    assert sorted(xlt_serve.__all__) == [
        "AsyncClient",
        "Classifier",
        "Client",
        "Failure",
        "Prediction",
        "XltError",
        "__version__",
        "load",
    ]
    assert all(hasattr(xlt_serve, name) for name in xlt_serve.__all__)
