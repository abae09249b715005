from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from xlt_serve.errors import BundleError, DependencyError, UsageError
from xlt_serve.runtime import session
from xlt_serve.runtime.gpu import providers
from xlt_serve.runtime.session import Options, Session, cuda_options


def test_cuda_without_cuda_is_an_error_not_a_silent_cpu_run(bundle: Path) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    for name in ("cuda", "tensorrt"):
        with pytest.raises(DependencyError, match=f"{name}: is not in this onnxruntime"):
            Session(bundle / "plain.onnx", Options(provider=name))
    with pytest.raises(DependencyError, match="tpu: is not a provider"):
        Session(bundle / "plain.onnx", Options(provider="tpu"))


def test_a_provider_that_onnxruntime_drops_is_an_error(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when CUDA's libraries fail to load: onnxruntime warns and gives the CPU."""
    monkeypatch.setattr(providers, "require", lambda *_: "CUDAExecutionProvider")
    made = onnxruntime.InferenceSession

    def without_cuda(path: str, settings: Any, **_: Any) -> Any:
        return made(path, settings, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", without_cuda)
    with pytest.raises(DependencyError, match=r"cuda: was asked for.*gave CPUExecutionProvider"):
        Session(bundle / "plain.onnx", Options(provider="cuda"))


def test_nodes_left_to_the_cpu_are_an_error(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real record of where each node went, on a session that claims to be CUDA's."""
    monkeypatch.setattr(providers, "require", lambda *_: "CPUExecutionProvider")
    with pytest.raises(
        BundleError, match=r"would run .*Attention.* elsewhere than on cuda; export"
    ):
        Session(bundle / "plain.onnx", Options(provider="cuda"), {})


def test_a_run_that_fails_is_not_repeated_elsewhere(bundle: Path) -> None:
    assert Session(bundle / "plain.onnx")._session._enable_fallback is False


def test_a_run_that_fails_writes_nothing(bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A log that nobody reads would hold it up; the error is raised."""
    opened = Session(bundle / "plain.onnx")
    feeds = {name: np.full((1, 4), 10**6, dtype=np.int64) for name in opened.inputs}
    with pytest.raises(Exception, match=r"out of|indices|Gather"):
        opened.run(feeds)
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_no_graph_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "plain.onnx").write_bytes(b"nonsense")
    with pytest.raises(BundleError, match="can't be opened by onnxruntime"):
        Session(tmp_path / "plain.onnx")


def test_weights_that_are_gone_are_a_clear_error(bundle: Path, tmp_path: Path) -> None:
    shutil.copy(bundle / "plain.onnx", tmp_path)
    with pytest.raises(BundleError, match="can't be opened by onnxruntime"):
        Session(tmp_path / "plain.onnx")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (Options(threads=-1), "threads=-1: must be 0"),
        (Options(memory=-1), "memory=-1: must be 0"),
        (Options(cuda_graphs=True), "provider=cpu: has no CUDA graphs here; use provider cuda"),
        (Options(provider="tensorrt", cuda_graphs=True), "use provider cuda"),
    ],
)
def test_wrong_options(options: Options, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        session.check(options)


def test_what_cuda_is_told() -> None:
    plain = cuda_options(Options(provider="cuda", device=1))
    assert plain == {
        "device_id": "1",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
        "enable_cuda_graph": "0",
    }
    limited = cuda_options(Options(provider="cuda", memory=2**30, cuda_graphs=True))
    assert limited["gpu_mem_limit"] == "1073741824"
    assert limited["enable_cuda_graph"] == "1"
