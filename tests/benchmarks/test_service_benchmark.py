"""What ``benchmarks.service`` counts, and that its peers are started as their programs want it."""

from __future__ import annotations

import math

import pytest

from benchmarks import service, service_peers
from xlt_serve.bench.loops import LoadRun, Reply, Sample


def sample(sent: float, done: float, status: int = 200) -> Sample:
    return Sample(sent, sent, done, Reply(status))


def test_throughput_counts_until_the_end_and_latency_whatever_comes_later() -> None:
    samples = [
        sample(0.0, 0.5),  # warm-up
        sample(0.5, 1.5),
        sample(2.0, 2.2),
        sample(4.9, 9.0),  # sent in time, answered after the end
        sample(3.0, 3.1, status=429),
    ]
    found = service.summary(LoadRun(samples, 9.0, 0.0), warm_up=1, end=5)
    assert found["per_second"] == pytest.approx(2 / 4)
    assert found["max"] == pytest.approx(4.1)
    assert found["p50"] == pytest.approx(1.0)
    assert found["statuses"] == {"200": 3, "429": 1}


def test_neither_late_answers_nor_refusals_make_a_service_good() -> None:
    late = service.summary(LoadRun([sample(0, 1.2)] * 3, 1.2, 0.0), warm_up=0.1, end=0.5)
    assert (late["per_second"], late["good_within_1s"]) == (0, 0)
    assert late["p50"] == pytest.approx(1.2)
    half = [sample(0, 0.1), sample(0, 0.1, status=429)] * 5
    assert service.summary(LoadRun(half, 1.0, 0.0), warm_up=0, end=1)["good_within_1s"] == 0.5


def test_no_answer_at_all_has_no_latency() -> None:
    found = service.summary(LoadRun([sample(0, 0.1, status=0)], 1.0, 0.0), warm_up=0, end=1)
    assert math.isnan(found["p99"])
    assert found["statuses"] == {"0": 1}


def test_a_peer_is_told_its_port_and_sends_one_text_a_request() -> None:
    peer = service_peers.small()
    assert peer.command(4321)[1:] == ["-m", "xlt_serve.cli", "serve", "--port", "4321"]
    assert peer.bodies(["ü"]) == [('{"texts": ["ü"]}'.encode(), 1)]
    empty = service_peers.bentoml("empty", "Empty")
    assert empty.command(5)[-3:] == ["benchmarks.peers.plain_bentoml:Empty", "--port", "5"]
