"""Bundles that hang or crash whoever loads them: a swap says so, and nothing changes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.xlt_serve.serving.conftest import Start, copied
from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.errors import BundleError
from xlt_serve.serving import rehearsal, sealed
from xlt_serve.serving.rehearsal import rehearse
from xlt_serve.serving.sealed import seal
from xlt_serve.text import patterns


def saved(folder: Path, change: Callable[[Path], object]) -> Bundle:
    """A copy of the shipped bundle, changed, its hashes made to fit."""
    copied(folder, "for a rehearsal")
    change(folder)
    return bundles.save(folder, bundles.described(folder).manifest)


def endless(folder: Path) -> None:
    """The plain graph, its logits behind a loop of 2⁶³ rounds."""
    file = folder / "plain.onnx"
    model = onnx.load(str(file), load_external_data=False)
    carried = ["carried", "next"]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Neg", ["carried"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info(carried[1], TensorProto.FLOAT, None),
        ],
    )
    for node in model.graph.node:
        node.output[:] = ["before" if name == "logits" else name for name in node.output]
    rounds = numpy_helper.from_array(np.array(2**63 - 1), "rounds")
    model.graph.initializer.extend([rounds, numpy_helper.from_array(np.array(True), "yes")])
    loop = helper.make_node("Loop", ["rounds", "yes", "before"], ["logits"], body=body)
    model.graph.node.append(loop)
    file.write_bytes(model.SerializeToString())


def backtracking(folder: Path) -> None:
    file = folder / "tokenizer.json"
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    slow = {"type": "Replace", "pattern": {"Regex": " +▁"}, "content": "▁"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [slow] * 5}
    file.write_text(json.dumps(content), encoding="utf-8")


def test_a_graph_that_loops_for_ever_is_refused(tmp_path: Path) -> None:
    bundle = saved(tmp_path / "endless", endless)
    with pytest.raises(BundleError, match=r"endless: its load and first run took over 4 s; .*"):
        rehearse(bundle, provider="cpu", limit=4)


def test_a_tokenizer_that_hangs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = saved(tmp_path / "hanging", backtracking)
    with pytest.raises(BundleError, match=r"no known tokenizer.*XLT_TRUST_TOKENIZER"):
        rehearse(bundle, provider="cpu", limit=30)
    monkeypatch.setenv(patterns.TRUST, "1")
    with pytest.raises(BundleError, match="took over 3 s"):
        rehearse(bundle, provider="cpu", limit=3)


def test_a_child_that_dies_is_told(second: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the real libraries can't be had at will: the child ends as one would."""
    for ending, says in (
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("raise SystemExit(3)", "ended with 3 and without an answer"),
        ("import time\na = []\nwhile True: a.append(b'x' * 50_000_000); time.sleep(0.05)", "bytes"),
    ):
        monkeypatch.setattr(rehearsal, "CHILD", ["-c", ending])
        monkeypatch.setattr(rehearsal, "MEMORY", 200_000_000)
        with pytest.raises(BundleError, match=says):
            rehearse(bundles.load(second), provider="cpu", limit=60)


@pytest.mark.usefixtures("own_drops")
def test_a_good_bundle_passes_once(second: Path, tmp_path: Path) -> None:
    bundle = seal(second, tmp_path / "sealed")
    rehearse(bundle, provider="cpu", limit=60)
    mark = sealed.passed(bundle, "cpu")
    assert mark is not None
    assert mark.exists()
    rehearse(bundle, provider="cpu", limit=0.001)  # the other workers do not wait again
    with pytest.raises(BundleError, match="took over"):
        rehearse(bundle, provider="cuda", limit=0.001)  # where it runs otherwise
    del bundle
    sealed.remove_dropped()
    assert list(mark.parent.iterdir()) == []
    rehearse(bundles.load("topics"), provider="cpu", limit=0.001)  # nor does anyone for what ships


@pytest.mark.parametrize("place", ["a copy", "where it is"])
def test_a_bundle_can_not_say_itself_that_it_passed(tmp_path: Path, place: str) -> None:
    """Not by any file that it brings along."""
    folder = copied(tmp_path / "origin", "sure of itself")
    for name in (".rehearsed", "passed", "bundle.passed-cpu"):
        (folder / name).touch()
    given = bundles.save(folder, bundles.described(folder).manifest)
    assert ".rehearsed" in given.manifest.files
    bundle = seal(folder, tmp_path / "sealed") if place == "a copy" else sealed.unsealed(folder)
    with pytest.raises(BundleError, match="took over"):
        rehearse(bundle, provider="cpu", limit=0.001)


def test_twelve_digits_of_a_shipped_version_are_not_enough(second: Path) -> None:
    """As if somebody had found other content whose version begins so."""
    shipped = bundles.load("topics")
    other = bundles.load(second)
    same = Bundle(other.path, replace(other.manifest, version=shipped.manifest.version))
    with pytest.raises(BundleError, match="took over"):
        rehearse(same, provider="cpu", limit=0.001)


def test_a_swap_that_would_hang_changes_nothing(tmp_path: Path, start: Start) -> None:
    admin = "k" * 32
    service = start(admin_keys=(admin,), load_timeout=6.0)
    bundle = saved(tmp_path / "endless", endless)
    before = service.get("/models").json()["models"]
    asked = {"name": "topics", "bundle": str(bundle.path)}
    answer = service.post("/models", json=asked, headers={"Authorization": f"Bearer {admin}"})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "bundle"
    assert re.search(r"took over \d(\.\d+)? s; ", answer.json()["error"]["message"])
    assert service.get("/models").json()["models"] == before


def test_a_limit_of_centuries_is_one(second: Path) -> None:
    rehearse(bundles.load(second), provider="cpu", limit=1e12)


def test_a_rehearsal_ends_with_the_service(tmp_path: Path) -> None:
    bundle = saved(tmp_path / "endless", endless)
    stopped = threading.Event()
    threading.Timer(1, stopped.set).start()
    with pytest.raises(rehearsal.Stopped):
        rehearse(bundle, provider="cpu", limit=60, stopped=stopped.is_set)


def test_a_child_whose_worker_was_killed_ends_by_itself(tmp_path: Path) -> None:
    bundle = saved(tmp_path / "endless", endless)
    call = [sys.executable, *rehearsal.CHILD, str(bundle.path), "cpu", "1"]
    assert subprocess.run(call, timeout=30, check=False).returncode == -14
