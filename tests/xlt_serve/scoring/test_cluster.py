"""The same on Ray: a real local cluster, worker processes, one of them killed on the way."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from tests.conftest import ROOT
from tests.xlt_serve.scoring.fakes import Fake
from tests.xlt_serve.scoring.test_formats import write
from tests.xlt_serve.scoring.test_resume import rows
from xlt_serve import bundle as bundles
from xlt_serve.errors import DataError, UsageError, XltError
from xlt_serve.files.window import BEGIN
from xlt_serve.scoring import Order, cluster, run, score
from xlt_serve.scoring.order import layout
from xlt_serve.scoring.reading import read


def test_shards_are_all_windows_once(tmp_path: Path, bundle: Path) -> None:
    """Read from their positions, shards give what reading from the beginning gives."""
    for name in ("i.csv", "i.jsonl.gz", "i.parquet"):
        source = write(tmp_path / name, rows(130))
        order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), text="text", window=7)
        units = layout(order).units
        found = list(cluster.shards(order, units))
        assert [shard.number for shard in found] == list(range(len(found)))
        assert [shard.windows for shard in found] == [4, 4, 4, 4, 3]
        again = []
        for shard in found:
            windows = read(units[0].sources[0], shard.start, 7)
            for _, window in zip(range(shard.windows), windows, strict=False):
                again += window.rows
        assert again == rows(130)


def test_pipes_are_refused(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="engine ray reads and writes files"):
        score(
            Order(
                "-",
                str(tmp_path / "o.csv"),
                str(bundle),
                in_format="csv",
                text="text",
                engine="ray",
            )
        )


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            RuntimeError("poisoned\nand more"),
            DataError,
            r"i\.csv from line 3: .*RuntimeError: poisoned",
        ),
        (UsageError("top_k", "must be positive", "mend it"), UsageError, "top_k: must be positive"),
        (DataError("i.csv", "is damaged"), DataError, r"i\.csv: is damaged"),
    ],
)
def test_what_an_actor_fails_with_is_one_line_and_keeps_its_cause(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kind: type[XltError],
    says: str,
) -> None:
    """An actor without Ray: what it returns, and what the driver makes of that."""

    class Failing(Fake):
        def predict(self, items: object, **settings: object) -> NoReturn:
            raise error

    source = write(tmp_path / "i.csv", rows(20))
    order = Order(str(source), str(tmp_path / "o.csv"), str(bundle), text="text", engine="ray")
    units = layout(order).units
    (shard,) = cluster.shards(order, units)
    shard = replace(shard, start=next(read(units[0].sources[0], BEGIN, 1)).end)
    writers = [run._writer(order, bundles.load(str(bundle)), unit) for unit in units]
    monkeypatch.setattr(cluster, "opened", lambda found, _: Failing(found.manifest.labels))
    (tmp_path / cluster.SIGN).touch()  # the folder is one that all machines see
    actor = cluster.Actor(order, str(bundle), units, writers, str(tmp_path), {0: shard})
    made = actor({"shard": [0]})
    assert json.loads(made["counts"][0])["rows"] == 0
    with pytest.raises(kind, match=says) as caught:
        cluster.raise_problem(made["problem"][0])
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert "in predict" in str(caught.value.__cause__)  # where it was raised


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own, many
def test_a_killed_worker_of_a_real_cluster_leaves_no_trace(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="pip install 'xlt-serve[ray]'")
    psutil = pytest.importorskip("psutil")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # a busy machine would starve them
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = tmp_path / "in"
    folder.mkdir()
    write(folder / "a.csv", rows(150))
    write(folder / "b.csv", rows(90))
    whole = Order(str(folder), str(tmp_path / "whole.parquet"), str(bundle), window=10)
    score(whole)
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="error")
    killed: list[int] = []

    def kill_one() -> None:
        """As soon as a part is there, an actor that makes others."""
        parts = tmp_path / "o.parquet.partial" / "parts"
        end = time.monotonic() + 240
        while time.monotonic() < end and not killed:
            if list(parts.glob("*.json")):
                for process in psutil.process_iter(["name", "cmdline"]):
                    title = " ".join(process.info["cmdline"] or [])
                    if "MapWorker" in title and process.pid != os.getpid():
                        os.kill(process.pid, signal.SIGKILL)
                        killed.append(process.pid)
                        return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        order = Order(
            str(folder),
            str(tmp_path / "o.parquet"),
            str(bundle),
            window=10,
            engine="ray",
            workers=2,
        )
        summary = score(order)
    finally:
        killer.join()
        ray.shutdown()
    assert killed
    assert summary.counts.rows == 240
    assert (tmp_path / "o.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not list(tmp_path.glob("*.partial"))
