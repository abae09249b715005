"""The whole road to a GPU and back through the real CUDA provider, over a device that computes nothing:
binding, buckets, captured graphs, events, several devices, and what is said where memory ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import cuda_stub, graphs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, encoders: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("half") / "bundle"
    graphs.make(encoders["xlm-roberta"], folder, precision="fp16")
    return folder


@pytest.fixture(scope="module", params=[cuda_stub.OLDEST, cuda_stub.NEWEST])
def ask(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Any]:
    libraries = cuda_stub.build(request.param, tmp_path_factory.mktemp("stub"))

    def call(what: str, *given: object, **more: str) -> Any:
        return cuda_stub.run(request.param, libraries, what, *given, more=more)

    return call


def test_batches_go_there_and_back_in_buckets(half: Path, ask: Callable[..., Any]) -> None:
    found = ask("road", half)
    assert set(found) == set(graphs.KINDS)
    for graph, inputs in (("plain", 2), ("perturbed", 4), ("paired", 4)):
        mine = found[graph]
        # 1 row, 3 rows twice, 200 rows in 64 + 64 + 64 + 8: seven runs, of four shapes.
        assert [len(ran) for ran in mine["ran"].values()] == [1, 1, 4]
        assert mine["ran"]["3 x 20"][0]["length"] == 24
        assert mine["buffers"] == 4
        assert mine["inputs"] == inputs
        # At least one copy for each input and output of each run; what is more, the provider needs.
        assert mine["to_device"] >= 7 * inputs
        assert mine["to_host"] >= 7
        assert mine["launches"] > 100
        assert mine["device_ms"] >= 0


def test_each_shape_is_captured_once_and_then_replayed(half: Path, ask: Callable[..., Any]) -> None:
    for mine in ask("captured", half).values():
        assert mine["captures"] == 2
        assert mine["replays"] >= 6


def test_runs_are_spread_over_two_gpus(half: Path, ask: Callable[..., Any]) -> None:
    found = ask("spread", half, XLT_STUB_GPUS="2")
    assert found["answers"] == list(range(1, 9))
    assert min(found["buffers"]) > 0


def test_a_batch_without_room_is_named(half: Path, ask: Callable[..., Any]) -> None:
    said = ask("crowded", half, XLT_STUB_MEMORY="2500000")
    assert said.startswith("a run of batch 64, length 64: needs more memory than GPU 0 has left")
    assert "lower XLT_BUDGET" in said


def test_a_machine_with_one_gpu_has_no_second(half: Path, ask: Callable[..., Any]) -> None:
    assert "must be below 1, the number of GPUs" in ask("refusal", half, 1)


def test_a_driver_that_is_too_old_is_told(half: Path, ask: Callable[..., Any]) -> None:
    said = ask("refusal", half, 0, XLT_STUB_CUDA="11080")
    assert said.startswith("the NVIDIA driver: knows CUDA 11.8 at most")


def test_int8_that_ships_is_refused_and_fp16_named(ask: Callable[..., Any]) -> None:
    said = ask("refusal", "topics", 0)
    assert "30 MatMulIntegerToFloat" in said
    assert "elsewhere than on cuda" in said
    assert "export it with --precision fp16" in said
