"""The peers' scripts speak the library's protocol, and their graphs answer as ours do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests import ROOT
from xlt_serve.bench.grid import batch
from xlt_serve.bench.peers import PeerProcess, save_batches
from xlt_serve.bundle import Bundle
from xlt_serve.errors import DataError
from xlt_serve.runtime.session import Options, Session


def command(script: str, folder: Path, batches: Path) -> list[str]:
    return [
        *(sys.executable, str(ROOT / "benchmarks" / "peers" / f"{script}.py"), "run"),
        *("--checkpoint", "none", "--folder", str(folder), "--precision", "fp32"),
        *("--batches", str(batches)),
    ]


def test_a_peer_times_its_runs_and_gives_its_logits(
    graph_bundles: Mapping[str, Bundle], tmp_path: Path
) -> None:
    bundle = graph_bundles["xlm-roberta"]
    for name in ("plain.onnx", "weights.bin"):
        shutil.copy(bundle.file(name), tmp_path)
    shutil.copy(bundle.file("plain.onnx"), tmp_path / "model.onnx")  # where optimum has its own
    feeds = {"2x16": batch(bundle, 2, 16), "1x8": batch(bundle, 1, 8)}
    save_batches(tmp_path / "batches.npz", feeds)
    session = Session(bundle.file("plain.onnx"), Options(threads=1))
    for script in ("with_optimum", "with_xlt"):
        given = command(script, tmp_path, tmp_path / "batches.npz")
        peer = PeerProcess(script, given, os.environ)
        try:
            for name, one in feeds.items():
                seconds, logits = peer.run(name, 3)
                assert len(seconds) == 3
                assert min(seconds) > 0
                np.testing.assert_allclose(logits, session.run(one)["logits"], atol=1e-5)
        finally:
            peer.close()


def test_a_peer_that_can_not_run_says_why(tmp_path: Path) -> None:
    given = command("with_optimum", tmp_path, tmp_path / "none.npz")
    with pytest.raises(DataError, match=r"optimum: can't run here \(.*model\.onnx"):
        PeerProcess("optimum", given, os.environ)
