"""How often the numbers are gathered."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from xlt_serve.serving.metrics import OneThread, Rendered, exposed


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


def test_those_of_the_service_are_shared_so() -> None:
    assert exposed()[0] is exposed()[0]


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
