from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.xlt_serve.runtime.gpu.test_providers import CUDA, Library, loader
from xlt_serve import bundle as bundles
from xlt_serve.bench import nvml
from xlt_serve.errors import DependencyError, UsageError
from xlt_serve.runtime.gpu import devices
from xlt_serve.runtime.gpu.devices import Spread
from xlt_serve.runtime.open_graph import described, io_of, open_graph
from xlt_serve.runtime.session import Options

MACHINE = loader(*CUDA, library=Library(gpus=3))


def test_numbers_are_read_and_all_asks_the_driver() -> None:
    assert devices.numbers("0", MACHINE) == (0,)
    assert devices.numbers("2, 0", MACHINE) == (2, 0)
    assert devices.numbers("all", MACHINE) == (0, 1, 2)
    with pytest.raises(DependencyError, match="no NVIDIA driver"):
        devices.numbers("all", loader())


@pytest.mark.parametrize("said", ["", "x", "-1", "0,0", "0;1", "1.5", "0,", "²"])
def test_what_names_no_gpus(said: str) -> None:
    with pytest.raises(UsageError, match="must be numbers of GPUs, each once, or all"):
        devices.numbers(said, MACHINE)


def test_workers_go_round() -> None:
    assert [devices.worker_device((3, 5), worker) for worker in (1, 2, 3, 4)] == [3, 5, 3, 5]
    assert devices.worker_device((3, 5), None) == 3
    assert devices.worker_device((), 7) == 0


def test_runs_are_spread_over_what_is_free() -> None:
    """Two runs at a time on two devices, each with one of its own."""
    at_once, seen = threading.Barrier(2, timeout=20), []

    class Slow:
        inputs = outputs = ("x",)
        dims: dict[str, Any] = {}  # noqa: RUF012
        provider = "here"

        def __init__(self, number: int) -> None:
            self.number = number

        def run(self, feeds: Any) -> Any:
            at_once.wait()
            seen.append(self.number)
            return feeds

    spread = Spread([Slow(0), Slow(1)])  # type: ignore[list-item]
    threads = [threading.Thread(target=spread.run, args=({"x": np.zeros(1)},)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [0, 0, 1, 1]


def test_a_run_that_fails_gives_its_device_back() -> None:
    bundle = bundles.load("topics")
    session = open_graph(bundle, "plain", Options(threads=1), 512)
    spread = Spread([session])  # type: ignore[list-item]
    feeds = io_of(bundle, "plain", described(bundle, "plain")).example({"batch": 1, "length": 8})
    for _ in range(2):
        with pytest.raises(Exception, match="input_ids"):
            spread.run({"input_ids": feeds["input_ids"].astype(np.float32)})
    np.testing.assert_array_equal(spread.run(feeds)["logits"], session.run(feeds)["logits"])


def test_nvml_is_asked_for_the_same_gpu() -> None:
    """The driver's first GPU may be NVML's last."""
    driver = Library(gpus=2)
    asked: list[str] = []
    fake = SimpleNamespace(
        nvmlDeviceGetHandleByUUID=lambda uuid: asked.append(uuid) or "handle",
        nvmlDeviceGetHandleByIndex=lambda index: pytest.fail("NVML counts otherwise"),
    )
    assert nvml.handle_of(fake, 1, loader(*CUDA, library=driver)) == "handle"
    assert asked == ["GPU-00000000-0000-0000-0000-000000000001"]
