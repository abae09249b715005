"""Fair shares: against the bound of the theory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.serving.fairness import MOST, Shares
from xlt_serve.serving.queue import Waiting


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=20), min_size=2, max_size=5))
def test_no_client_is_ahead_by_more_than_one_row_of_each(requests: list[list[int]]) -> None:
    """While two clients wait, what they have had differs by at most their longest rows."""
    shares, waiting = Shares(), Waiting[tuple[str, int]]()
    left = {}
    for number, lengths in enumerate(requests):
        client = f"client {number}"
        left[client] = len(lengths)
        shares.comes(client)
        for length in lengths:
            waiting.push(length, 0.0, (client, length), client)
    while all(left.values()):
        shares.serves(waiting.first(shares.used)[2])
        [(client, length)] = waiting.take(1, shares.used, 1.0)
        shares.had(client, length)
        left[client] -= 1
        assert max(shares.used.values()) - min(shares.used.values()) <= 9


def test_a_newcomer_begins_where_the_others_stand() -> None:
    shares = Shares()
    shares.comes("old")
    for _ in range(5):
        shares.serves("old")
        shares.had("old", 1.0)
    shares.comes("new")
    assert shares.used == {"old": 5.0, "new": 4.0}
    shares.comes("old")  # who has had more than others waits for them
    assert shares.used["old"] == 5.0


def test_who_waits_for_the_first_turn_is_not_forgotten() -> None:
    """All begin at the same virtual time; what they have had since counts."""
    shares = Shares()
    for number in range(MOST + 2):
        shares.comes(f"client {number}")
    assert "client 0" in shares.used


def test_clients_that_have_gone_are_forgotten() -> None:
    shares = Shares()
    for number in range(3 * MOST):
        shares.comes(f"client {number}")
        shares.had(f"client {number}", 1.0)
        shares.serves(f"client {number}")
    assert len(shares.used) <= MOST + 1
