"""CUDA and TensorRT against the CPU. ``pytest -m gpu`` on a machine with a GPU.

Elsewhere they are skipped with the reason; with XLT_REQUIRE_GPU=1 (as benchmarks/gpu.sh sets it) a
missing provider is a failure.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests import graphs
from tests.conftest import FOOD, SPORTS
from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.cli.main import main
from xlt_serve.errors import BundleError, DependencyError
from xlt_serve.runtime.gpu import engine, providers
from xlt_serve.runtime.gpu.binding import BoundSession
from xlt_serve.runtime.open_graph import described, open_graph
from xlt_serve.runtime.session import Options, Session

pytestmark = pytest.mark.gpu

BUDGET = 1024
ALL = [(name, graph) for name in ("xlm-roberta", "bert") for graph in graphs.KINDS]
# TensorRT computes fp32 products in TF32, with 10 bits of mantissa.
TOLERANCE = {"cuda": 1e-4, "tensorrt": 2e-2}


@pytest.fixture(params=["cuda", "tensorrt"])
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    need(name)
    return name


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests: an engine takes a while to build."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Bundle:
    """The toy topics in fp16, exported as a user would."""
    need("cuda")
    out = tmp_path_factory.mktemp("half") / "bundle"
    assert (
        main(["export", str(checkpoint), "--out", str(out), "--precision", "fp16", "--tensorrt"])
        == 0
    )
    return bundles.load(out)


def need(name: str) -> None:
    try:
        providers.require(providers.runtime(), name)
    except DependencyError as error:
        if os.environ.get("XLT_REQUIRE_GPU") == "1":
            raise
        pytest.skip(str(error))


def opened(bundle: Bundle, graph: str, name: str, engines: Path, **more: object) -> Session:
    return open_graph(bundle, graph, Options(provider=name, cache=engines, **more), BUDGET)


def batches(bundle: Bundle, graph: str, count: int, most: int, seed: int) -> list[graphs.Feeds]:
    inputs, generator = described(bundle, graph).inputs, np.random.default_rng(seed)
    pad_id = bundle.manifest.pad_id
    return [
        graphs.feeds(inputs, graphs.sizes(inputs, generator, most), pad_id, generator)
        for _ in range(count)
    ]


def assert_close(given: graphs.Feeds, expected: graphs.Feeds, tolerance: float) -> None:
    assert list(given) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(given[name], values, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("name", "graph"), ALL)
def test_every_graph_agrees_with_the_cpu(
    graph_bundles: dict[str, Bundle], name: str, graph: str, provider: str, engines: Path
) -> None:
    bundle = graph_bundles[name]
    cpu = open_graph(bundle, graph, None, BUDGET)
    session = opened(bundle, graph, provider, engines)
    assert isinstance(session, BoundSession)
    assert session.provider == providers.PROVIDERS[provider]
    assert any(place.provider == session.provider for place in session.assigned())
    for feeds in batches(bundle, graph, 20, 80, seed=0):
        assert_close(session.run(feeds), cpu.run(feeds), TOLERANCE[provider])


def test_threads_do_not_mix_their_batches(
    graph_bundles: dict[str, Bundle], provider: str, engines: Path
) -> None:
    bundle = graph_bundles["bert"]
    cpu, session = (
        open_graph(bundle, "plain", None, BUDGET),
        opened(bundle, "plain", provider, engines),
    )
    work = batches(bundle, "plain", 100, 12, seed=1)
    expected = [cpu.run(feeds) for feeds in work]
    with ThreadPoolExecutor(8) as pool:
        for given, wanted in zip(pool.map(session.run, work), expected, strict=True):
            assert_close(given, wanted, TOLERANCE[provider])


def test_cuda_graphs_replay_what_a_run_computes(
    graph_bundles: dict[str, Bundle], engines: Path
) -> None:
    """Each batch thrice: the first runs warm up and capture, the last replays."""
    need("cuda")
    bundle = graph_bundles["bert"]
    cpu = open_graph(bundle, "plain", None, BUDGET)
    session = opened(bundle, "plain", "cuda", engines, cuda_graphs=True)
    for feeds in batches(bundle, "plain", 10, 60, seed=2) * 3:
        assert_close(session.run(feeds), cpu.run(feeds), TOLERANCE["cuda"])


def test_memory_stays_under_its_limit(graph_bundles: dict[str, Bundle], engines: Path) -> None:
    need("cuda")
    bundle = graph_bundles["bert"]
    session = opened(bundle, "plain", "cuda", engines, memory=256 * 2**20)
    cpu = open_graph(bundle, "plain", None, BUDGET)
    for feeds in batches(bundle, "plain", 10, 60, seed=3):
        assert_close(session.run(feeds), cpu.run(feeds), TOLERANCE["cuda"])


def test_half_precision_keeps_the_labels(half: Bundle, provider: str, engines: Path) -> None:
    cpu = Classifier(half)
    gpu = Classifier(half, Options(provider=provider, cache=engines), BUDGET)
    texts = [SPORTS, FOOD, *(f"{SPORTS} {FOOD} " * n for n in range(1, 12))]
    for one, other in zip(cpu.predict(texts), gpu.predict(texts), strict=True):
        assert one.label == other.label
        assert other.probabilities == pytest.approx(one.probabilities, abs=0.02)


def test_an_engine_is_built_once_and_opened_from_its_context(
    graph_bundles: dict[str, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("tensorrt")
    bundle, cache = graph_bundles["xlm-roberta"], tmp_path / "engines"
    options = Options(provider="tensorrt", cache=cache)
    (first,) = engine.build(bundle, ["plain"], options)
    assert not first.reused
    assert first.cache.context.is_file()
    assert any(file.suffix == ".engine" for file in first.cache.files())
    (second,) = engine.build(bundle, ["plain"], options)
    assert second.reused
    assert second.cache == first.cache
    assert second.seconds < first.seconds
    assert main(["engine", str(bundle.path), "--cache", str(cache), "--graphs", "plain"]) == 0
    assert capsys.readouterr().out.startswith("plain: found in")


def test_an_int8_graph_is_not_left_to_the_cpu(engines: Path) -> None:
    need("cuda")
    with pytest.raises(BundleError, match="MatMulIntegerToFloat elsewhere than on cuda"):
        opened(bundles.load("topics"), "plain", "cuda", engines)
