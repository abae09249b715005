from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from xlt_serve.runtime.gpu.engine_cache import building, turn
from xlt_serve.runtime.gpu.tensorrt import EngineCache


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_what_was_built_appears_whole(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, "plain-fp16-aa")
    (tmp_path / "sm89.timing").write_text("before")
    with building(cache) as here:
        assert here.prefix == cache.prefix
        assert (here.folder / "sm89.timing").read_text() == "before"
        here.context.write_text("context")
        (here.folder / "plain-fp16-aa_1.engine").write_text("engine")
        (here.folder / "sm89.timing").write_text("after")
        assert cache.files() == []
    assert names(tmp_path) == {"plain-fp16-aa_ctx.onnx", "plain-fp16-aa_1.engine", "sm89.timing"}
    assert (tmp_path / "sm89.timing").read_text() == "after"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path, "plain-fp16-aa")

    def fail() -> None:
        with building(cache) as here:
            here.context.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(tmp_path) == set()


def build_once(folder: Path) -> None:
    cache = EngineCache(folder / "engines", "plain")
    with turn(cache.folder):
        if not cache.context.is_file():
            with building(cache) as here, (folder / "log").open("a") as log:
                log.write("built\n")
                time.sleep(0.2)
                here.context.write_text("whole")


def test_of_several_processes_one_builds(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=build_once, args=(tmp_path,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert (tmp_path / "log").read_text() == "built\n"
    assert (tmp_path / "engines" / "plain_ctx.onnx").read_text() == "whole"
