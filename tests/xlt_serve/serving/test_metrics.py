"""How often the numbers are gathered."""

from __future__ import annotations

import asyncio
import itertools
import string
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import prometheus_client
import pytest

from xlt_serve.serving.metrics import LANGUAGES, OneThread, Rendered, _language, exposed, metrics
from xlt_serve.text.language import _identifier, table
from xlt_serve.types import Failure, Prediction


def test_numbers_are_gathered_once_a_second_however_many_ask() -> None:
    now, times = [0.0], list[int]()

    def render() -> tuple[bytes, str]:
        times.append(threading.get_ident())
        time.sleep(0.05)
        return f"{len(times)}".encode(), "text"

    shared = Rendered(render, 1.0, lambda: now[0])
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(shared) for _ in range(40)]
        assert {each.result() for each in found} == {(b"1", "text")}
    now[0] = 0.99
    assert shared()[0] == b"1"
    now[0] = 1.0
    assert shared()[0] == b"2"


def test_items_are_counted_in_few_steps_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop does it: a thousand invalid items took it 15 ms."""
    looked, labels = list[tuple[Any, ...]](), prometheus_client.Counter.labels

    def counted(self: Any, *values: Any) -> Any:
        looked.append(values)
        return labels(self, *values)

    monkeypatch.setattr(prometheus_client.Counter, "labels", counted)
    good = Prediction("a", language="de", truncated=True)
    bad = Prediction(None, error=Failure("empty", "no token"))
    metrics().answered("of this test", [good, bad] * 500)
    assert len(looked) == len(set(looked)) == 4
    told = prometheus_client.REGISTRY.get_sample_value
    for name, series, count in (
        ("xlt_predictions_total", {"mode": "plain", "outcome": "error"}, 500),
        ("xlt_predictions_total", {"mode": "plain", "outcome": "label"}, 500),
        ("xlt_languages_total", {"language": "de"}, 500),
        ("xlt_truncated_total", {}, 500),
    ):
        assert told(name, {"bundle": "of this test"} | series) == count


def test_those_of_the_service_are_shared_so() -> None:
    assert exposed()[0] is exposed()[0]


def test_a_client_makes_no_series_by_its_names_of_languages() -> None:
    """Not even of two letters, in whatever case."""
    names = {"".join(two) for two in itertools.product(string.ascii_letters, repeat=2)}
    found = {_language(name) for name in names | {"x", "deu", "ſw", "De "}}
    assert found == LANGUAGES | {"other"}
    assert [_language(name) for name in ("de", "DE", None, 3)] == ["de", "de", "unknown", "other"]


def test_each_language_that_is_found_has_its_series() -> None:
    """Of those that have a code of two letters."""
    found = {*table().languages, *_identifier(()).labels}
    assert {code for code in found if len(code) == 2} <= LANGUAGES


def test_they_are_gathered_anew_for_another_edition() -> None:
    """Also for one that came while they were gathered."""
    edition, times = [0], list[int]()

    def render() -> tuple[bytes, str]:
        times.append(edition[0])
        edition[0] += edition[0] == 1
        return f"{times[-1]}".encode(), "text"

    shared = Rendered(render, 1e9, edition=lambda: edition[0])
    assert [shared()[0], shared()[0]] == [b"0", b"0"]
    edition[0] = 1
    assert [shared()[0], shared()[0], shared()[0]] == [b"1", b"2", b"2"]
    assert times == [0, 1, 2]


def test_of_all_who_wait_on_an_event_loop_one_takes_a_thread() -> None:
    """The others would fill the pool, which swaps and files need too."""
    at_once = list[set[str]]()

    def pool() -> set[str]:
        return {one.name for one in threading.enumerate() if one.name.startswith("asyncio_")}

    before = pool()

    def render() -> tuple[bytes, str]:
        time.sleep(0.05)
        at_once.append(pool())
        return b"numbers", "text"

    async def main() -> list[tuple[bytes, str]]:
        shared = OneThread(Rendered(render, 1e9))
        impatient = asyncio.create_task(shared())
        asyncio.get_running_loop().call_later(0.01, impatient.cancel)
        return await asyncio.gather(*(shared() for _ in range(50)))

    assert set(asyncio.run(main())) == {(b"numbers", "text")}
    assert len(at_once) == 1
    assert len(at_once[0] - before) <= 2  # that of the one who left, too
