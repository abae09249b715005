"""Fair shares: against the bounds of the theory."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.serving.fairness import MOST, Shares
from xlt_serve.serving.queue import Waiting


class Machine:
    """One run after the other, by virtual time alone, as the scheduler makes them."""

    def __init__(self, budget: int = 1) -> None:
        self.shares, self.waiting = Shares(), Waiting[tuple[str, int]]()
        self.budget, self.rows = budget, 0
        self.had = Counter[str]()

    def asks(self, client: str, *lengths: int) -> None:
        if not self.waiting.tokens_of(client):
            self.shares.comes(client)
        for length in lengths:
            self.rows += 1
            self.waiting.push(length, float(self.rows), (client, length), client)

    def runs(self) -> list[str]:
        used = self.shares.used
        self.shares.serves(self.waiting.first(used)[2], self.waiting.clients())
        batch = self.waiting.take(self.budget, used, 1.0)
        for client, length in batch:
            self.shares.had(client, length)
            self.had[client] += length
        return [client for client, _ in batch]


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=20), min_size=2, max_size=5))
def test_no_client_is_ahead_by_more_than_one_row_of_each(requests: list[list[int]]) -> None:
    """While two clients wait, what they have had differs by at most their longest rows."""
    machine = Machine()
    left = Counter[str]()
    for number, lengths in enumerate(requests):
        machine.asks(f"client {number}", *lengths)
        left[f"client {number}"] = len(lengths)
    while all(left.values()):
        left.subtract(machine.runs())
        used = machine.shares.used.values()
        assert max(used) - min(used) <= 9


@given(
    st.integers(2, 5),
    st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=30, max_size=60),
    st.data(),
)
def test_newcomers_change_nothing_of_the_equal_shares_of_those_who_wait(
    clients: int, newcomers: list[list[int]], data: st.DataObject
) -> None:
    machine = Machine()
    names = [f"client {number}" for number in range(clients)]
    for name in names:
        machine.asks(name, *data.draw(st.lists(st.integers(1, 9), min_size=60, max_size=60)))
    for moment, lengths in enumerate(newcomers):
        for number, length in enumerate(lengths):
            machine.asks(f"newcomer {moment} {number}", length)
        machine.runs()
        had = [machine.had[name] for name in names]
        assert max(had) - min(had) <= 9


@pytest.mark.parametrize("at_once", [1, 2, 10])
@pytest.mark.parametrize("budget", [1, 50])
def test_who_waits_gets_its_share_among_newcomers_without_end(at_once: int, budget: int) -> None:
    """There is always one who was never seen, each with as long a row. None of them starves either."""
    machine, length = Machine(budget), 10
    machine.asks("waits", *[length] * 5000)
    here, came = list[str](), 0
    since = Counter[str]()
    for _ in range(1000):
        while len(here) < at_once:
            came += 1
            here.append(f"newcomer {came}")
            machine.asks(here[-1], length)
        ran = machine.runs()
        for name in ("waits", *here):
            since[name] = 0 if name in ran else since[name] + 1
        # As many as wait, and as many again that came before it had its last turn.
        assert max(since.values()) <= 2 * at_once + 2
        here = [name for name in here if name not in ran]
    share = machine.had.total() / (at_once + 1)
    assert machine.had["waits"] >= share - 4 * length
    if budget == 1:  # else it gets what would be empty beside theirs
        assert machine.had["waits"] <= share + 4 * length


def test_who_was_idle_gets_nothing_for_it() -> None:
    machine = Machine()
    machine.asks("busy", *[1] * 500)
    machine.asks("idle", 1)
    for _ in range(200):
        machine.runs()
    machine.asks("idle", *[1] * 200)
    before = machine.had.copy()
    for _ in range(100):
        machine.runs()
    assert abs(machine.had["idle"] - before["idle"] - 50) <= 1


def test_a_newcomer_begins_where_the_others_stand() -> None:
    shares = Shares()
    shares.comes("old")
    for _ in range(5):
        shares.serves("old", {"old"})
        shares.had("old", 1.0)
    shares.comes("new")
    assert shares.used == {"old": 5.0, "new": 4.0}
    shares.comes("old")  # who has had more than others waits for them
    assert shares.used["old"] == 5.0


def test_who_waits_for_the_first_turn_is_not_forgotten() -> None:
    """All begin at the same virtual time; what they have had since counts."""
    machine = Machine()
    names = [f"client {number}" for number in range(MOST + 2)]
    for name in names:
        machine.asks(name, 1)
    assert {name for _ in names for name in machine.runs()} == set(names)


@pytest.mark.parametrize("at_once", [1, 50])
def test_clients_that_have_gone_are_forgotten(at_once: int) -> None:
    """While somebody always waits, and at a cost that each of them shares."""
    machine, dictionaries = Machine(), list[dict[str, float]]()
    for number in range(at_once):
        machine.asks(f"early {number}", 1)
    for number in range(20 * MOST):
        machine.asks(f"client {number}", 1)
        machine.runs()
        assert len(machine.shares.used) <= MOST + 2 * at_once
        if not dictionaries or dictionaries[-1] is not machine.shares.used:
            dictionaries.append(machine.shares.used)
    assert len(dictionaries) <= 25
