from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.xlt_serve.runtime.gpu.test_providers import CUDA, Library, loader
from xlt_serve import bundle as bundles
from xlt_serve.bench import nvml
from xlt_serve.cli import options
from xlt_serve.errors import DependencyError, UsageError
from xlt_serve.runtime.gpu import devices
from xlt_serve.runtime.gpu.devices import Spread
from xlt_serve.runtime.open_graph import described, io_of, open_graph
from xlt_serve.runtime.session import Options
from xlt_serve.scoring.answer import workers_of
from xlt_serve.scoring.order import Order
from xlt_serve.serving import settings

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


def test_the_commands_take_devices_for_gpus_only() -> None:
    assert options.devices_of(None, "cpu") == ()
    assert options.devices_of(None, "cuda") == ()
    with pytest.raises(UsageError, match=r"--device: is for GPUs; give --provider cuda"):
        options.devices_of("0", "cpu")


def test_a_device_where_there_is_no_driver_is_a_wrong_call() -> None:
    """For real, where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        with pytest.raises(UsageError, match="no NVIDIA driver"):
            options.devices_of("0", "cuda")
    else:
        pytest.skip("this machine has an NVIDIA driver")


def test_the_service_reads_its_devices() -> None:
    read = settings.read({"XLT_DEVICE": "0,2", "XLT_BUNDLES": "topics"})
    assert read.devices == (0, 2)
    assert settings.read({"XLT_BUNDLES": "topics"}).devices == ()


def test_scoring_has_two_workers_for_each_gpu_and_ray_has_its_own() -> None:
    order = Order("in.csv", "out.csv", provider="cuda", devices=(0, 1, 2))
    assert workers_of(order) == 6
    with pytest.raises(UsageError, match="Ray gives each actor a GPU itself"):
        Order("in.csv", "out.csv", provider="cuda", devices=(0,), engine="ray")
