"""Who is let in beside many others, on a machine that serves clients in equal shares, by its own clock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from xlt_serve.serving.admission import Admission, Busy, Limits, Ticket
from xlt_serve.serving.load_shedding import COMPANY

SPEED = 1000.0
"""Tokens a second."""

STEP = 0.01
WAIT = 0.15


@dataclass
class Machine:
    """Requests by client; ``late``: seconds from arrival to answer of those that were let in."""

    now: float = 100.0
    late: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = Limits(wait=WAIT, speed=SPEED, tokens=10**9)
        self.admission = Admission(
            limits,
            lambda: self.now,
            contextlib.nullcontext(),
            lambda: SPEED,
            lambda client: 0,
            lambda tickets: None,
        )

    def asks(self, client: str, seconds: float, rows: int) -> Ticket | None:
        """So many seconds of work, tokenised at once."""
        size = int(3 * SPEED * seconds)
        try:
            ticket = self.admission.admit(size, rows=rows, client=client)
        except Busy:
            self.refused.append(client)
            return None
        self.admission.settle(ticket, ticket.guess)
        ticket.asked = ticket.left = seconds
        return ticket

    def runs(self) -> None:
        """A step: every client that waits gets the same share of it, its oldest request first."""
        queues: dict[str, list[Ticket]] = {}
        for ticket in sorted(self.admission.inside, key=lambda t: t.arrived):
            queues.setdefault(ticket.client, []).append(ticket)
        self.now += STEP
        for queue in queues.values():
            queue[0].left -= STEP / len(queues)
            if queue[0].left <= 1e-9:
                self.admission.leave(queue[0])
                self.late[queue[0].client] = self.now - queue[0].arrived

    def flood(self, clients: Iterable[str], seconds: float, rows: int, each: int) -> None:
        """So many requests a step, then until all are answered."""
        for number, client in enumerate(clients):
            self.asks(client, seconds, rows)
            if number % each == each - 1:
                self.runs()
        while self.admission.inside:
            self.runs()


def test_long_requests_of_many_clients_are_shed() -> None:
    machine = Machine()
    machine.flood((f"{number}" for number in range(1000)), 4.0, rows=1000, each=1)
    assert len(machine.refused) > 900
    assert machine.late
    assert max(machine.late.values()) <= (COMPANY + 3) * 4.0  # it shares with so many


def test_short_requests_of_many_clients_are_shed() -> None:
    """At five times what can be done. They wait as long as they may, and not for those to come."""
    machine = Machine()
    machine.flood((f"{number}" for number in range(2000)), STEP, rows=1, each=5)
    assert 1400 < len(machine.refused) < 1700
    assert max(machine.late.values()) <= 3 * 32 * STEP


def test_a_client_that_asks_for_little_is_let_in_beside_a_few_that_ask_for_much() -> None:
    for others in (["heavy"] * 8, [f"heavy {number}" for number in range(6)]):
        machine = Machine()
        for _ in range(500):
            for other in others:
                machine.asks(other, 4.0, rows=1000)
            if light := machine.asks("light", 0.005, rows=1):
                machine.admission.leave(light)
            machine.runs()
        assert "light" not in machine.refused
        assert len(machine.refused) > 1000


@pytest.mark.parametrize("seconds", [0.02, 0.3, 4.0])
def test_clients_with_keys_of_their_own_are_let_in_beside_each_other(seconds: float) -> None:
    machine = Machine()
    for number in range(6):
        assert machine.asks(f"{number}", seconds, rows=1000)
    assert machine.asks("light", seconds / 60, rows=16)


def test_a_vote_that_stays_open_counts_as_much_as_it_has_had() -> None:
    """How many more draws it will ask for, nobody knows: of all that could be said this is the least
    wrong."""
    machine = Machine()
    vote = machine.admission.admit(30, rows=12, client="a", drawn=5_000_000)
    machine.admission.settle(vote, vote.guess)
    vote.asked, vote.left = 6.0, 0.0
    machine.now += 100
    assert machine.admission.ahead(0.0, "a") == 6.0
    assert machine.asks("b", 4.0, rows=1000)
    vote.drawn = None
    assert machine.admission.ahead(0.0, "a") == 0.0


def test_the_door_counts_those_on_their_way_in() -> None:
    """All that arrive in one round of the event loop pass it before the first of them is looked into."""
    machine = Machine()
    for _ in range(100):  # so that a request of the client is known to take so long
        ticket = machine.asks("a", STEP, rows=1)
        machine.now += STEP
        assert ticket is not None
        machine.admission.leave(ticket)
    passed = []
    for _ in range(200):
        try:
            machine.admission.refuse_if_full("a")
        except Busy:
            break
        passed.append(machine.admission.enters("a"))
    assert 10 <= len(passed) <= 40
    machine.admission.refuse_if_full("b")
    with pytest.raises(Busy):
        machine.admission.refuse_if_full("a")
    for entry in passed:
        entry.ends()
    machine.admission.refuse_if_full("a")
    assert not machine.admission._entering


def test_of_a_long_request_on_its_way_in_the_next_row_counts() -> None:
    """As of one that is inside: a client may have two or three of them, however they come."""
    machine = Machine()
    for _ in range(20):
        ticket = machine.asks("a", 1.0, rows=1000)
        machine.now += 1.0
        assert ticket is not None
        machine.admission.leave(ticket)
    entries = []
    for _ in range(3):
        machine.admission.refuse_if_full("a")
        entries.append(machine.admission.enters("a"))
    for entry in entries:
        entry.ends()


def test_who_has_nothing_on_its_way_is_not_held_up_at_the_door() -> None:
    """Whatever others have: it is not even added up."""
    machine = Machine()
    for number in range(3):
        ticket = machine.asks(str(number), 5.0, rows=1)
        assert ticket is not None
        machine.admission.enters(str(number))
    machine.admission.refuse_if_full("new")
    found = machine.admission._look("new", door=True)
    assert found.own == []


@pytest.mark.parametrize("drawn", [False, True])
def test_of_drawn_texts_the_first_step_says_nothing_of_the_pace(drawn: bool) -> None:
    machine = Machine()
    before = machine.admission._pace
    ticket = machine.admission.admit(3000, text=100_000, client="a", retokenised=drawn)
    machine.admission.prepared(ticket, 0.0)
    assert (machine.admission._pace == before) is drawn
