"""The bytes of answers that a worker holds until their clients have taken them in, bounded.

Where there would be more, an answer of the client who holds most is given up, the oldest: who asks for
much and does not read it drives out its own answers, and nobody else's. One that is still being written
is refused, one that is being sent is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.metrics import metrics

PIECE = 64 * 1024
"""Bytes that are sent at once: the next follow when the client has room for them. So many of each answer
don't count: there are at most as many as connections."""


class Unsent:
    """One answer. ``timeout``: ends the sending of it; None: it is still being written."""

    def __init__(self, client: str) -> None:
        self.client, self.given_up = client, False
        self.timeout: asyncio.Timeout | None = None


class UnsentAnswers:
    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0
        self._held: dict[Unsent, int] = {}  # in the order in which they began

    def hold(self, answer: Unsent, size: int) -> None:
        """So large is it by now; 429 where it is the one that is given up."""
        counted = max(0, size - PIECE)
        if counted:
            self.bytes += counted - self._held.get(answer, 0)
            self._held[answer] = counted
        while self.bytes > self.most:
            self._give_up(self._oldest())
        if answer.given_up:
            raise Refusal(
                429,
                "too_many_answers",
                "",
                f"the service holds {self.most} bytes of answers, which is all that it may",
                "try again in 1 s, read answers sooner, or ask for less at once",
                {"Retry-After": "1"},
            )

    def leave(self, answer: Unsent) -> None:
        """It is sent, or will not be."""
        self.bytes -= self._held.pop(answer, 0)

    def _oldest(self) -> Unsent:
        """Of the client who holds most."""
        sums = Counter[str]()
        for answer, size in self._held.items():
            sums[answer.client] += size
        [(client, _)] = sums.most_common(1)
        return next(answer for answer in self._held if answer.client == client)

    def _give_up(self, answer: Unsent) -> None:
        answer.given_up = True
        self.leave(answer)
        if answer.timeout is not None:
            metrics().cut.labels("unsent").inc()
            with contextlib.suppress(RuntimeError):  # it is ending already
                answer.timeout.reschedule(0)


class AnswerInPieces(Response):
    """Each piece waits until the client has taken in those before it, so that what is not sent stays
    here, where it is counted. A client that takes too long is cut off: ``bounded_http``."""

    def __init__(self, content: bytes, answer: Unsent, answers: UnsentAnswers) -> None:
        super().__init__(content, media_type="application/json")
        self._answer, self._answers = answer, answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(None) as self._answer.timeout:
                await self._send(send)
        except TimeoutError:  # given up; what was sent is not the whole, so the server hangs up
            scope["state"]["known"]["gone"] = True
        finally:
            self._answers.leave(self._answer)

    async def _send(self, send: Send) -> None:
        headers, length = self.raw_headers, len(self.body)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for start in range(0, max(1, length), PIECE):
            end = start + PIECE
            piece = bytes(self.body[start:end])
            await send({"type": "http.response.body", "body": piece, "more_body": end < length})
            if end < length:
                await asyncio.sleep(0)
