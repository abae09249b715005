from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from xlt_serve import session
from xlt_serve.errors import BundleError, DependencyError
from xlt_serve.session import Options, Session, pad


def test_two_runtimes_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_is_installed", lambda name: True)
    with pytest.raises(DependencyError, match=r"alternatives.*pip uninstall -y onnxruntime"):
        session.runtime()


def test_no_runtime_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_is_installed", lambda name: False)
    with pytest.raises(DependencyError, match=r"pip install 'xlt-serve\[serve\]'"):
        session.runtime()


def test_cuda_without_cuda_is_an_error_not_a_silent_cpu_run(bundle: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(DependencyError, match="cuda: is not in this onnxruntime"):
        Session(bundle / "plain.onnx", Options(provider="cuda"))
    with pytest.raises(DependencyError, match="tpu: is not a provider"):
        Session(bundle / "plain.onnx", Options(provider="tpu"))


def test_a_file_that_is_no_graph_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "plain.onnx").write_bytes(b"nonsense")
    with pytest.raises(BundleError, match="can't be opened by onnxruntime"):
        Session(tmp_path / "plain.onnx")


def test_pad() -> None:
    ids, mask = pad([[5, 6, 7], [8]], 1)
    np.testing.assert_array_equal(ids, [[5, 6, 7], [8, 1, 1]])
    np.testing.assert_array_equal(mask, [[1, 1, 1], [1, 0, 0]])
