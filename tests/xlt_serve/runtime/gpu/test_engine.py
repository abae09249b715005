from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from tests import graphs
from tests.xlt_serve.cli.test_cli import run
from xlt_serve.bundle import Bundle
from xlt_serve.runtime.gpu import engine
from xlt_serve.runtime.gpu.engine import Built
from xlt_serve.runtime.gpu.tensorrt import EngineCache
from xlt_serve.runtime.open_graph import described, io_of


@pytest.mark.parametrize("graph", graphs.KINDS)
def test_every_bucket_runs(graph_bundles: dict[str, Bundle], graph: str) -> None:
    bundle = graph_bundles["bert"]
    session = graphs.bound(bundle, graph)
    io = io_of(bundle, graph, described(bundle, graph))
    timed = engine.run_buckets(session, io, session.buckets)
    assert set(timed) == set(session.buckets)
    assert all(milliseconds > 0 for milliseconds in timed.values())


def test_the_report_says_what_was_built_and_where(tmp_path: Path) -> None:
    (tmp_path / "plain-fp16-aa_1.engine").write_bytes(b"x" * 2_000_000)
    said = engine.report(
        Built("plain", EngineCache(tmp_path, "plain-fp16-aa"), False, 12.3, {(8, 64): 1.5})
    )
    assert said.splitlines()[0] == "plain: built in 12.3 s, 2.0 MB"
    assert str(tmp_path / "plain-fp16-aa_1.engine") in said
    assert "8 ×  64" in said
    assert "found in" in engine.report(Built("plain", EngineCache(tmp_path, "x"), True, 0.5, {}))


def test_without_a_gpu_the_command_is_refused(
    capsys: pytest.CaptureFixture[str], graph_bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    if "TensorrtExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has TensorRT")
    cache = tmp_path / "cache"
    code, out, err = run(capsys, "engine", graph_bundles["bert"].path, "--cache", cache)
    assert code == 2
    assert out == ""
    assert err.startswith("xlt: tensorrt: is not in this onnxruntime")
    assert "pip install 'xlt-serve[gpu]'" in err
    assert len(err.strip().splitlines()) == 1
    assert not cache.exists()


def test_wrong_calls_are_refused_before_the_gpu_is_looked_for(
    capsys: pytest.CaptureFixture[str], graph_bundles: dict[str, Bundle]
) -> None:
    path = graph_bundles["prompts"].path
    code, _, err = run(capsys, "engine", path, "--graphs", "paired")
    assert code == 2
    assert "graph paired: is none of the bundle's: plain, perturbed" in err
    code, _, err = run(capsys, "engine", "topics")
    assert code == 1
    assert "is int8, which TensorRT does not take; export it with --precision fp16" in err
    assert run(capsys, "engine")[0] == 2
