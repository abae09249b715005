"""Whose requests are refused, by a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.serving.load_shedding import (
    BRIEF,
    CALM,
    CROWD,
    SHORT_QUEUE,
    WINDOW,
    Overload,
    brief,
)


def windows(overload: Overload, now: float, counts: list[tuple[int, int]]) -> float:
    """So many arrivals and answers in each window from ``now`` on; the time after them."""
    for arrived, answered in counts:
        for _ in range(arrived):
            overload.let_in(now + 0.001)
        for _ in range(answered):
            overload.answered(now + 0.002, 0.0)
        now += WINDOW + 0.002
    return now


def test_in_calm_a_request_waits_the_limit_or_as_long_as_it_works_or_for_a_short_queue() -> None:
    overload = Overload(wait=0.5)
    assert overload.longest(0.01) == 0.5
    assert overload.longest(3.0, rows=1000) == 3.0
    assert overload.longest(0.1) == SHORT_QUEUE * 0.1
    assert not overload.begins(10.0, 0.5)


@pytest.mark.parametrize(
    ("counts", "sheds"),
    [
        ([(20, 4), (20, 4), (20, 4)], True),  # a flood
        ([(64, 5), (5, 5), (5, 5)], False),  # sixty-four clients that wait for their answers begin
        ([(8, 0), (0, 8), (4, 0), (4, 0), (0, 8), (4, 0), (4, 0)], False),  # eight, run together
        ([(2, 0), (1, 0), (0, 0)], False),  # too few to tell
    ],
)
def test_a_queue_that_grows_from_window_to_window_is_shed(
    counts: list[tuple[int, int]], sheds: bool
) -> None:
    overload = Overload(wait=0.5)
    now = windows(overload, 10.0, counts)
    assert overload.begins(now, 0.1) is sheds
    assert overload.longest(0.001) == (BRIEF if sheds else 0.5)


def test_a_growing_queue_that_nobody_notices_is_left_alone() -> None:
    overload = Overload(wait=0.5)
    now = windows(overload, 10.0, [(20, 4), (20, 4), (20, 4)])
    assert not overload.begins(now, BRIEF / 2, BRIEF / 2)
    assert overload.begins(now, 0.0, 2 * BRIEF)  # the event loop is what they wait for


@pytest.mark.parametrize(
    ("lag", "came", "sheds"),
    [(0.6, CROWD + 1, True), (0.6, CROWD, False), (0.4, CROWD + 1, False)],
)
def test_who_makes_the_event_loop_late_is_shed(lag: float, came: int, sheds: bool) -> None:
    overload = Overload(wait=0.5)
    for _ in range(came):
        overload.comes(9.0)
    assert overload.begins(10.0, 0.0, lag) is sheds


def test_a_crowd_is_of_one_round() -> None:
    overload = Overload(wait=0.5)
    for _ in range(CROWD + 1):
        overload.comes(10.0)
    assert overload.crowd
    overload.comes(10.1)
    assert not overload.crowd


def test_shedding_ends_when_few_are_refused_or_nothing_comes() -> None:
    quiet, paused, few = (Overload(wait=0.5) for _ in range(3))
    for overload in (quiet, paused, few):
        assert overload.begins(10.0, 0.6)
        overload.refused(10.01)
    paused.let_in(10.01 + CALM)  # noise
    assert paused.shedding
    quiet.let_in(10.06 + CALM)
    assert not quiet.shedding
    for _ in range(30):
        few.let_in(10.015)
    few.let_in(10.03)  # one in thirty-one was refused
    assert not few.shedding


def test_shedding_goes_on_while_many_are_refused() -> None:
    overload, now = Overload(wait=0.5), 10.0
    assert overload.begins(now, 0.6)
    for _ in range(100):
        now += 0.01
        overload.refused(now)
        overload.let_in(now)
    assert overload.shedding


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.floats(0, 10), st.booleans()), max_size=60),
    st.floats(0, 10),
)
def test_what_hardly_waits_is_always_let_in(
    events: list[tuple[float, float, bool]], work: float
) -> None:
    overload, now = Overload(wait=1), 100.0
    for gap, ahead, answered in events:
        now += gap
        overload.begins(now, ahead)
        assert overload.longest(work) >= brief(work) >= BRIEF
        assert overload.longest(work) <= max(1, SHORT_QUEUE * work)
        if ahead > overload.longest(work):
            overload.refused(now)
        else:
            overload.let_in(now)
        if answered:
            overload.answered(now, work)
