"""Bodies over a real connection: refused early, and so that the client sees why."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.xlt_serve.serving.sockets import Heard, Listening, heard, listening
from xlt_serve.serving import failures
from xlt_serve.serving.body import read_json
from xlt_serve.serving.held_bodies import FREE, Held, HeldBodies
from xlt_serve.serving.settings import Environment
from xlt_serve.serving.turns import by_turns


class Reading:
    """An application that reads bodies and answers with what they hold."""

    def __init__(self, **limits: Any) -> None:
        self.environment = replace(Environment({}), **limits)
        self.bodies = HeldBodies(self.environment.max_bodies)
        self.app = Starlette(routes=[Route("/", self.read, methods=["POST"])])

    async def read(self, request: Request) -> Response:
        try:
            value = await read_json(request, self.environment, self.bodies)
        except Exception as error:
            response = failures.response(error, "id")
            response.headers["x-request-id"] = "id"
            return response
        finally:
            if held := getattr(request.state, "held", None):
                self.bodies.leave(held)
        return Response(json.dumps(len(value)))


@contextlib.contextmanager
def reading(**limits: Any) -> Iterator[tuple[Listening, Reading]]:
    made = Reading(**limits)
    with listening(made.app, idle_timeout=5.0, header_timeout=5.0, drain_timeout=5.0) as server:
        yield server, made


def head(length: int, more: str = "Content-Type: application/json\r\n") -> bytes:
    return f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def post(server: Listening, body: bytes) -> Heard:
    more = "Content-Type: application/json\r\nConnection: close\r\n"
    (answer,) = server.said(head(len(body), more), body)
    return answer


def until(done: Any, seconds: float = 10) -> None:
    ends = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_what_is_too_much_is_refused_so_that_the_client_sees_it() -> None:
    """It writes all of its body before it reads, as most clients do."""
    bodies = {
        "body_too_large": b'["' + b"a" * 3_000_000 + b'"]',
        "too_many_values": b"[" + b"0," * 900_000 + b"0]",
        "string_too_long": b'["' + b"a" * 1_900_000 + b'"]',
    }
    with reading(max_body=2_000_000) as (server, _):
        for code, body in bodies.items():
            answer = post(server, body)
            assert answer.status == 413
            assert answer.error() == code
        assert post(server, b"[1, 2]").body == b"2"


def test_a_body_needs_its_content_type() -> None:
    with reading() as (server, _):
        for more in ("", "Content-Type: text/plain\r\n", "Content-Type:\r\n"):
            (answer,) = server.said(head(2, more + "Connection: close\r\n"), b"[]")
            assert (answer.status, answer.error()) == (415, "content_type")


def test_a_slow_body_is_told_so() -> None:
    with reading(read_timeout=0.2) as (server, _), server.client() as one:
        one.sendall(head(100) + b"[")
        (answer,) = heard(one)
        assert (answer.status, answer.error()) == (408, "slow_body")


def test_bodies_that_are_held_open_give_way_to_newer_ones() -> None:
    """The oldest is refused, and its bytes are given back; small ones don't count."""
    with (
        reading(max_bodies=4_000_000, read_timeout=30.0) as (server, app),
        contextlib.ExitStack() as s,
    ):
        lines: list[socket.socket] = []
        for number in range(8):
            line = s.enter_context(server.client())
            line.sendall(head(500_000) + b'["' + b"a" * 400_000)
            lines.append(line)
            until(lambda: app.bodies.bytes >= min(2, number + 1) * (400_002 - FREE))  # noqa: B023
            assert app.bodies.bytes <= 1_000_000
        for line in lines[:5]:
            (answer,) = heard(line)
            assert (answer.status, answer.error()) == (429, "too_many_bodies")
            assert answer.headers["retry-after"] == "1"
        assert post(server, b'["a"]').body == b"1"
        lines[-1].sendall(b"a" * (500_000 - 400_002 - 2) + b'"]')
        assert lines[-1].recv(65536).startswith(b"HTTP/1.1 200")
        for line in lines:
            line.close()
        until(lambda: app.bodies.bytes == 0)


def test_a_body_that_is_alone_too_much_is_refused() -> None:
    with reading(max_bodies=500_000) as (server, app):
        answer = post(server, b'["' + b"a" * 590_000 + b'"]')
        assert (answer.status, answer.error()) == (429, "too_many_bodies")
        until(lambda: app.bodies.bytes == 0)


def test_a_body_counts_as_what_it_becomes() -> None:
    """One wide character makes four bytes of each."""
    with reading(max_bodies=1_000_000) as (server, app):
        text = b'"' + b"a" * 90_000
        assert post(server, b"[" + text + b'",' + text + b'",' + text + b'"]').body == b"3"
        wide = text + "😀".encode()
        answer = post(server, b"[" + wide + b'",' + wide + b'",' + wide + b'"]')
        assert (answer.status, answer.error()) == (429, "too_many_bodies")
        until(lambda: app.bodies.bytes == 0)


def test_one_client_leaves_room_for_the_bodies_of_others() -> None:
    async def main() -> None:
        bodies = HeldBodies(40 * FREE)
        async with asyncio.timeout(10) as timeout:

            def comes(client: str, size: int, whole: bool = False) -> Held:
                held = Held(timeout, client)
                bodies.add(held, b"a" * (size + 1) * FREE)
                held.timeout = None if whole else held.timeout
                return held

            done = [comes("greedy", 3, whole=True) for _ in range(5)]
            assert [each.given_up for each in done] == [False] * 3 + [True] * 2
            honest = comes("honest", 4)
            greedy = [comes("greedy", 1) for _ in range(100)]
            assert not honest.given_up
            assert sum(not each.given_up for each in greedy) == 1
            others = [comes(f"{number}", 9) for number in range(3)]
            assert not honest.given_up
            assert any(each.given_up for each in (*greedy, *others))
            assert bodies.bytes <= bodies.most

    with contextlib.suppress(TimeoutError):
        asyncio.run(main())


def test_who_is_answered_gives_back_what_it_held() -> None:
    async def main() -> None:
        bodies = HeldBodies(10 * FREE)
        async with asyncio.timeout(10) as timeout:
            first, second = Held(timeout, "a"), Held(timeout, "b")
            bodies.add(first, b"a" * FREE)
            assert bodies.bytes == 0
            bodies.add(first, b"a" * FREE)
            first.timeout = None
            bodies.add(second, b"a" * (9 * FREE))
            assert bodies.bytes == 9 * FREE
            second.timeout = None
            third = Held(timeout, "c")
            bodies.add(third, b"a" * (3 * FREE))  # those before it have come: it is refused itself
            assert (first.given_up, second.given_up, third.given_up) == (False, False, True)
            bodies.leave(first)
            bodies.leave(second)
            assert bodies.bytes == 0

    asyncio.run(main())


def most_in_a_round(bodies: int, cancelled: int = 0) -> int:
    """Steps of so many large bodies that are parsed at once; of all rounds of the loop the most."""

    async def main() -> int:
        rounds, made, ended = 0, Counter[int](), Counter[int]()

        def steps(number: int) -> Iterator[None]:
            for _ in range(10):
                made[rounds] += 1
                yield
            ended[number] += 1

        async def ticks() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(ticks())
        tasks = [asyncio.create_task(by_turns(steps(number))) for number in range(bodies)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        for number in range(cancelled):
            await asyncio.sleep(0)
            tasks[number].cancel()
        await asyncio.wait(tasks, timeout=10)
        assert ended.keys() >= set(range(cancelled, bodies))
        assert all(task.done() for task in tasks)
        ticking.cancel()
        return max(made.values())

    return asyncio.run(main())


def test_many_large_bodies_take_no_more_of_a_round_than_one() -> None:
    assert most_in_a_round(1) == 1
    assert most_in_a_round(20) == 1


def test_whose_client_leaves_gives_its_turn_back() -> None:
    assert most_in_a_round(20, cancelled=7) == 1


def test_a_small_body_waits_for_no_turn() -> None:
    async def main() -> list[str]:
        order = list[str]()

        def steps(name: str, count: int) -> Iterator[None]:
            for _ in range(count):
                yield
            order.append(name)

        large = [asyncio.create_task(by_turns(steps("large", 5))) for _ in range(3)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await by_turns(steps("small", 0), small=True)  # type: ignore[arg-type]
        await asyncio.gather(*large)
        return order

    assert asyncio.run(main()) == ["small", "large", "large", "large"]
