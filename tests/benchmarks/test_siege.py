"""What ``benchmarks.siege`` and ``benchmarks.soak`` count, and that their bad requests are the same for a seed."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pss, soak
from benchmarks.siege import attacks, floods, fuzz, materials, numbers, report
from benchmarks.siege.__main__ import PARTS, chosen
from benchmarks.siege.apart import Apart
from benchmarks.siege.assault import Assault, Target
from xlt_serve import bundle as bundles
from xlt_serve.bench.loops import LoadRun, Reply, Sample
from xlt_serve.classifier import load
from xlt_serve.errors import XltError

PAGE = """\
# TYPE xlt_loop_lag_seconds histogram
xlt_loop_lag_seconds_bucket{le="0.001"} 5.0
xlt_loop_lag_seconds_bucket{le="0.025"} 6.0
xlt_loop_lag_seconds_bucket{le="+Inf"} 6.0
xlt_run_seconds_bucket{graph="plain",le="0.1"} 2.0
xlt_run_seconds_bucket{graph="paired",le="0.1"} 3.0
xlt_run_seconds_count{graph="paired"} 3.0
"""


def sample(sent: float, done: float, status: int = 200, items: int = 1) -> Sample:
    return Sample(sent, sent, done, Reply(status, items if status == 200 else 0))


def run(*samples: Sample, seconds: float = 10.0) -> LoadRun:
    return LoadRun(list(samples), seconds, 0.0)


def test_a_histogram_is_summed_over_its_labels() -> None:
    assert numbers.histogram(PAGE, "xlt_run_seconds") == {0.1: 5.0}
    assert numbers.histogram(PAGE, "xlt_loop_lag_seconds")[math.inf] == 6
    assert numbers.histogram(PAGE, "missing") == {}


def test_the_largest_value_is_in_the_last_bucket_that_grew() -> None:
    before = {0.1: 5.0, 1.0: 6.0, math.inf: 6.0}
    assert numbers.largest(before, before) is None
    assert numbers.largest(before, {0.1: 9.0, 1.0: 10.0, math.inf: 10.0}) == (0.0, 0.1)
    assert numbers.largest(before, {0.1: 9.0, 1.0: 11.0, math.inf: 11.0}) == (0.1, 1.0)
    assert numbers.largest({}, {0.1: 0.0, 1.0: 0.0, math.inf: 1.0}) == (1.0, math.inf)
    assert numbers.largest({}, {}) is None


def test_a_light_client_s_refusals_are_no_latencies_and_no_errors() -> None:
    found = numbers.seen(
        run(sample(0, 0.01), sample(1, 1.03), sample(2, 2.5, 429), sample(3, 3.001, 0))
    )
    assert found["p50"] == pytest.approx(30)
    assert found["max"] == pytest.approx(30)  # no answer counts as the slowest
    assert (found["refused"], found["errors"]) == (1, {"no answer": 1})
    assert math.isnan(numbers.seen(run())["p99"])


def test_recovery_counts_from_the_last_byte_by_requests_sent_after_it() -> None:
    found = run(sample(1, 6), sample(5.2, 5.3, 429), sample(5.5, 5.6), sample(7, 7.1, 503))
    assert numbers.recovered(found, 5) == pytest.approx(0.6)
    assert numbers.refused_until(found, 5) == pytest.approx(2)
    assert numbers.recovered(run(), 5) is None
    assert numbers.refused_until(run(), 5) == 0


def test_capacity_is_that_of_the_middle_of_a_closed_loop() -> None:
    steady = [sample(n / 10, n / 10 + 0.1) for n in range(100)]
    late = sample(10, 60)  # a straggler lengthens the run, not the estimate
    assert numbers.capacity(run(*steady, late, seconds=60)) == pytest.approx(10)
    assert numbers.capacity(
        run(*steady, *(sample(1, 1, 429) for _ in range(500)))
    ) == pytest.approx(10)
    assert numbers.capacity(run(sample(0, 1), seconds=2)) == 0.5


def test_accepted_requests_are_told_apart_by_size() -> None:
    found = numbers.by_size([sample(0, 1), sample(0, 2, items=16), sample(0, 3, 429)])
    assert found == {1: [1000.0], 16: [2000.0]}


def row(**changes: Any) -> dict[str, Any]:
    light = {"requests": 9, "p50": 1.0, "p99": 2.0, "max": 3.0, "refused": 0, "errors": {}}
    return {
        "before": light, "during": light, "after": light, "livez": light, "lag_ms": None,
        "idle_mb": 100.0, "peak_mb": 150.0, "ratio": 1.5, "attacker": {"431": 2}, "recovered": 0.04,
        "generator_cpu": 0.1, "end_seconds": 1.0, "wrong": [],
    } | changes  # fmt: skip


def test_a_row_says_which_goals_it_misses() -> None:
    assert numbers.failings(row()) == []
    light = row()["during"] | {"refused": 1, "errors": {"500": 1}, "p99": math.nan}
    missed = row(during=light, livez=light, ratio=2.0, lag_ms=50.0, recovered=None)
    assert numbers.failings(missed) == ["errors", "refusals", "memory", "probe", "loop", "not back"]
    after = row(after=row()["after"] | {"errors": {"no answer": 1}}, wrong=["certified"])
    assert numbers.failings(after) == ["not back", "attacker got certified"]


@pytest.mark.parametrize(
    ("name", "got", "wrong"),
    [
        ("endless headers", {"431": 9, "500": 1, "503": 2}, ["500"]),
        ("scale 1e20: false certificates", {"422": 9, "certified": 1}, ["certified"]),
        ("scale 1e20: false certificates", {"200": 9, "not certified": 9}, []),
        ("swap: manifest with NaN", {"swap nan: 422": 1, "swap good: 200": 1}, []),
        (
            "swap: manifest with NaN",
            {"swap nan: 200": 1, "swap good: 409": 1, "then GET /models: 500": 1},
            ["swap nan: 200", "swap good: 409", "then GET /models: 500"],
        ),
        ("swap: a graph that loops", {"swap loops: 422": 1, "then GET /models: 200": 1}, []),
        (
            "XLT_STATE corrupt, a worker killed",
            {"workers at the end: 2, new: 0": 1},
            ["workers at the end: 2, new: 0"],
        ),
        ("XLT_STATE corrupt, a worker killed", {"workers at the end: 2, new: 1": 1}, []),
        (
            "weights altered under the service",
            {"altered: the same answers": 1, "truncated: other answers": 1},
            ["truncated: other answers"],
        ),
    ],
)
def test_what_an_attacker_may_not_get_is_told_apart(
    name: str, got: dict[str, int], wrong: list[str]
) -> None:
    assert attacks.ATTACKS[name].wrong(got) == wrong


@pytest.mark.parametrize(
    ("attacked", "refused", "bucket", "expected"),
    [
        (120, 0, (0.05, 0.1), "yes"),
        (121, 0, (0.05, 0.1), "within the bucket"),
        (221, 0, (0.05, 0.1), "no"),
        (10, 1, (0.05, 0.1), "no"),
        (10, 0, None, "n/a"),
    ],
)
def test_fairness_is_judged_by_the_lower_bound_of_the_longest_run(
    attacked: float, refused: int, bucket: tuple[float, float] | None, expected: str
) -> None:
    assert floods.fair(20, attacked, refused, bucket) == expected


def test_the_report_holds_every_part() -> None:
    flood = {
        "capacity": 10.0, "sent": 500, "statuses": {"200": 100, "429": 400}, "without_retry_after": 0,
        "relative": {"1": 2.5}, "refused_after_same_key": 0.4, "refused_after_other_key": 0.0,
        "generator_cpu": 0.2, "generator_lag_p99_ms": 3.0,
    }  # fmt: skip
    fair = {
        "alone": row()["before"], "attacked": row()["before"], "longest_run_ms": [50.0, 100.0],
        "heavy_alone": 500.0, "heavy_beside": 480.0, "heavy_kept": 0.96, "heavy_statuses": {"200": 9},
        "generator_cpu": 0.1, "fair": "yes",
    }  # fmt: skip
    page = report.markdown(
        {
            "attacks": {
                "headers": {"finding": "1", "first": "fell", "xlt": row(), "infinity": row(ratio=3.0)},
                "log": {"finding": "14", "first": "", "xlt": {"failed": "not | ready"}},
            },
            "fairness": [fair],
            "shedding": [{"unloaded": {"1": 5.0}, "1": flood}, {"unloaded": {"1": 6.0}, "1": flood}],
            "death": {"workers": 2, "statuses": {"200": 5}, "in_flight_on_it": 1, "lost": 1,
                      "lost_of_its_own": 1, "lost_of_others": 0, "new_worker_after": None},
            "fuzz": {"requests": 10, "seed": 0, "per_second": 5.0, "server_errors": 1, "unanswered": 0,
                     "by_kind": {"raw": {"400": 9}}, "failures": [{"said": "500", "data": "b''"}]},
            "schemathesis": {"seconds": 9.0, "seed": 0, "exit": 0, "excluded": [], "summary": "fine\n"},
        }
    )  # fmt: skip
    assert "| attacks withstood | 1 of 2 | **no** |" in page
    assert (
        "| headers | 1 | fell | xlt-serve | 1 / 2 / 3 → 1 / 2 / 3 | 0 of 9 | 0 | 2 | n/a |" in page
    )
    assert "100 → 150 (3.00 ×)" in page
    assert "| **memory** |" in page
    assert "not started: not / ready" in page
    assert "2.5 [2.5, 2.5]" in page
    assert "| no 5xx in 10 bad requests | 1 | **no** |" in page
    assert len({line.count("|") for line in page.splitlines() if line.startswith("| headers")}) == 1


def test_bad_requests_are_the_same_for_a_seed_and_of_every_kind() -> None:
    first = list(fuzz.bad_requests(7, 400))
    assert first == list(fuzz.bad_requests(7, 400))
    assert first != list(fuzz.bad_requests(8, 400))
    assert set(Counter(bad.kind for bad in first)) == set(fuzz.SHARES)
    for bad in first:
        if bad.kind == "json":
            head, _, body = bad.data.partition(b"\r\n\r\n")
            assert f"Content-Length: {len(body)}".encode() in head
            json.loads(body)


def test_what_should_not_be_is_kept() -> None:
    found = fuzz.Fuzzed()
    whole, part = fuzz.Bad("raw", b"x"), fuzz.Bad("raw", b"x", whole=False)
    for bad, said in ((whole, "400"), (whole, "500"), (whole, "reset"), (part, "reset")):
        found.add(bad, said)
    assert [one["said"] for one in found.failures] == ["500", "reset"]
    assert found.statuses["raw"]["reset"] == 2


def test_floods_have_the_sizes_of_their_class() -> None:
    target = Target(1, "xlt", 1, Path(), 1.0)
    assert {size for _, size in floods.requests_of("16", target)} == {16}
    mixed = Counter(size for _, size in floods.requests_of("mixed", target))
    assert mixed[1] > mixed[16] > mixed[256] > 0
    for body, size in floods.requests_of("mixed", target, count=20):
        assert len(json.loads(body)["texts"]) == size
    other = Target(1, "infinity", 1, Path(), 1.0)
    assert set(json.loads(other.body(["a"]))) == {"model", "input"}


def test_names_choose_parts_and_attacks() -> None:
    assert chosen(None) == (list(attacks.ATTACKS), list(PARTS))
    assert chosen(["fuzz"]) == ([], ["fuzz"])
    assert chosen(["endless headers"]) == (["endless headers"], [])
    assert len(chosen(["swap"])[0]) == 2
    with pytest.raises(SystemExit, match="no such part"):
        chosen(["nothing"])


def test_memory_is_summed_over_a_process_and_its_children() -> None:
    assert pss.in_megabytes("Rss: 9 kB\nPss:    2048 kB\n") == 2
    with pytest.raises(OSError, match="no Pss"):
        pss.in_megabytes("Rss: 9 kB\n")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = pss.family(os.getpid())
        assert {os.getpid(), child.pid} <= set(found)
        both = pss.family_megabytes([os.getpid(), child.pid])
        assert both > pss.proportional_megabytes(child.pid) > 0
        with pss.Sampler(child.pid, every=0.01) as sampler:
            pass
        assert sampler.peak > 0
    finally:
        child.communicate(b"\n")
    assert pss.family(child.pid) == []
    assert pss.family_megabytes([child.pid]) == 0  # ended, and no error


async def _added(first: int, second: int) -> int:
    return first + second


async def _fails() -> None:
    raise ValueError("as it should")


async def _never() -> None:
    await asyncio.sleep(60)


def test_a_generator_runs_in_a_process_of_its_own() -> None:
    async def main() -> None:
        with Apart(_added, 1, 2) as sum_, Apart(_fails) as failing, Apart(_never) as endless:
            for one in (sum_, failing, endless):
                await one.ready()
                one.go()
            done = await sum_.result(30)
            assert (done.value, done.cpu >= 0) == (3, True)
            with pytest.raises(ValueError, match="as it should"):
                await failing.result(30)
            with pytest.raises(XltError, match="not done"):
                await endless.result(0.1)

    asyncio.run(main())


def test_attackers_count_what_comes_back() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if b"/zero_shot" not in asked:
            writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async def main() -> Counter[str]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            assault = Assault(Target(port, "xlt", 1, Path(), 5.0))
            assert await assault.ask(b"{}") == (413, b"{}")
            assert await assault.ask(b"{}", "/zero_shot") == (0, b"")
        assert assault.sent > 200
        nobody = Assault(Target(port, "xlt", 1, Path(), 5.0))
        assert await nobody.connect() is None
        return assault.got + nobody.got

    assert asyncio.run(main()) == {
        "413": 1,
        "closed without an answer": 1,
        "no connection (ConnectionRefusedError)": 1,
    }


def test_bundles_to_attack_with(tmp_path: Path) -> None:
    variables = materials.everything(tmp_path)
    assert set(variables) == {"XLT_BUNDLES", "XLT_SYNONYMS"}
    judge = load(tmp_path / "judge")
    assert judge.zero_shot(["Das Spiel"], ["sports", "travel"])[0].label in ("sports", "travel")
    materials.swaps(tmp_path)
    bundles.load(tmp_path / "good")
    with pytest.raises(XltError):
        bundles.load(tmp_path / "nan")
    bundles.load(tmp_path / "loops")  # nothing is wrong with it until it runs


def test_a_trend_is_seen_through_noise_and_not_where_there_is_none() -> None:
    generator = __import__("random").Random(0)
    moments = [10.0 * n for n in range(300)]
    noise = [generator.gauss(0, 1) for _ in moments]
    flat = soak.trend(moments, [100 + n for n in noise])
    assert flat.low < 0 < flat.high
    assert flat.growth < 0.01
    rising = soak.trend(moments, [100 + 0.01 * x + n for x, n in zip(moments, noise, strict=True)])
    assert rising.low < 0.01 < rising.high
    assert rising.low > 0.005
    assert rising.growth > 0.2
    assert math.isnan(soak.trend([1.0], [1.0]).slope)


def test_a_soak_is_judged_by_its_quiet_windows(tmp_path: Path) -> None:
    rows = []
    for n in range(60):
        probed = [(5.0, 200)] * 20 + [(1.0, 429)]
        found = soak.window(10.0 * n, 400.0, probed)
        found |= {"lag_ms": 10.0, "events": []}
        if n % 10 == 0:
            found |= {"p99": 50.0 * (n + 1), "events": ["flood"]}
        rows.append(found)
    page = soak.markdown({"rows": rows, "counts": {"swap: 200": 3}, "workers": 2})
    assert page.count("| yes |") == 6  # of all, and of the second half
    assert "60 refusals and 0 errors" in page
    soak.picture(rows, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").stat().st_size > 1000
