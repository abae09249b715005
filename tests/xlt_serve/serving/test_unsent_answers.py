"""Answers that nobody reads: how much of them is held, and whose are given up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xlt_serve.serving.conftest import Start, valid
from tests.xlt_serve.serving.sockets import heard, listening
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.middleware import Receive, Scope, Send
from xlt_serve.serving.unsent_answers import PIECE, AnswerInPieces, Unsent, UnsentAnswers


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4 * PIECE)), max_size=30))
def test_no_more_is_held_than_may_be(sizes: list[tuple[str, int]]) -> None:
    held, answers = UnsentAnswers(5 * PIECE), list[Unsent]()
    for client, size in sizes:
        answers.append(Unsent(client))
        with contextlib.suppress(Refusal):
            held.hold(answers[-1], size // 2)
            held.hold(answers[-1], size)
        assert 0 <= held.bytes <= 5 * PIECE
    for answer in answers:
        held.leave(answer)
        held.leave(answer)
    assert held.bytes == 0


def test_who_holds_most_loses_its_oldest() -> None:
    held = UnsentAnswers(10 * PIECE)
    light, *greedy = Unsent("light"), *(Unsent("greedy") for _ in range(5))
    held.hold(light, 3 * PIECE)
    for answer in greedy[:4]:
        held.hold(answer, 3 * PIECE)
    held.hold(greedy[4], 3 * PIECE)
    assert [each.given_up for each in (light, *greedy)] == [False, True, False, False, False, False]
    with pytest.raises(Refusal, match=r"holds 655360 bytes.*1 s") as refused:
        held.hold(greedy[0], 4 * PIECE)  # as it is written on
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})


LARGE = 8_000_000


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_clients_that_do_not_read_lose_their_oldest_answers() -> None:
    held = UnsentAnswers(int(2.5 * LARGE))
    gone = list[bool]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        known = scope["state"]["known"] = dict[str, bool]()
        answer = Unsent(scope["path"])
        held.hold(answer, LARGE)
        await AnswerInPieces(b"x" * LARGE, answer, held)(scope, receive, send)
        gone.append(known.get("gone", False))

    with listening(app, write_timeout=30.0) as server, contextlib.ExitStack() as stack:
        for number in range(6):
            client = stack.enter_context(server.client(receive_buffer=4096))
            client.sendall(b"GET /greedy HTTP/1.1\r\nHost: x\r\n\r\n")
            until(lambda number=number: len(gone) == max(0, number - 1))
        assert gone == [True] * 4
        assert held.bytes == 2 * (LARGE - PIECE)
        # Nor do they keep their connections until they would have read what was sent.
        until(lambda: len(server.server.server_state.connections) == 2)
        with server.client() as reads:
            reads.sendall(b"GET /light HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            [got] = heard(reads)
        assert len(got.body) == LARGE
        until(lambda: gone == [True] * 4 + [True, False])
        stack.close()  # the last of them leaves
        until(lambda: held.bytes == 0)


def test_an_answer_that_there_is_no_room_for_is_refused(start: Start) -> None:
    client = start(max_unsent=1000)
    assert client.post("/classify", json={"texts": ["Ein Satz."]}).status_code == 200
    refused = client.post("/classify", json={"texts": ["Ein Satz."] * 800})
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert valid("Error", refused.json())["error"]["code"] == "too_many_answers"
    assert client.app.app.state.service.unsent.bytes == 0  # type: ignore[union-attr]
