"""How often the numbers are gathered."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from xlt_serve.serving.metrics import Rendered, exposed


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
