"""Who is turned away, by a clock of the test's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.serving.load_shedding import BRIEF, LAG_KNOWN, Overload

seconds = st.floats(0, 10)


def test_below_the_limit_nobody_is_turned_away() -> None:
    overload = Overload(wait=2, calm=1)
    assert [overload.turns_away(now, 2.0, 0.1) for now in (5.0, 5.1, 9.0)] == [None] * 3
    assert not overload.lasts(9.0)


def test_an_overload_shortens_the_wait_and_ends_when_more_are_let_in_than_refused() -> None:
    overload = Overload(wait=2, calm=1)
    assert overload.turns_away(10.0, 2.1, typical=0.4) == 2.1
    assert overload.longest(10.5, typical=0.4) == 0.2
    assert overload.turns_away(10.5, 0.3, typical=0.4) == 0.3
    overload.let_in()
    assert overload.lasts(11.2)  # two refused, one let in
    overload.let_in()
    assert not overload.lasts(12.3)  # none refused since
    assert overload.turns_away(12.3, 1.9, typical=0.4) is None


def test_an_overload_that_nobody_saw_go_on_is_over() -> None:
    overload = Overload(wait=2, calm=1)
    overload.turns_away(10.0, 3.0, 0.1)
    assert not overload.lasts(12.5)  # a quiet second has passed since


@pytest.mark.parametrize(("since", "refused"), [(0.0, True), (LAG_KNOWN + 0.01, False)])
def test_a_late_event_loop_counts_while_it_is_known(since: float, refused: bool) -> None:
    overload = Overload(wait=0.5, calm=1)
    overload.lagged(10.0, 0.7)
    waits = overload.turns_away(10.0 + since, 0.0, 0.1)
    assert waits == (0.7 if refused else None)


@given(st.lists(st.tuples(st.floats(0, 0.5), seconds, st.booleans()), max_size=60), seconds)
def test_what_hardly_waits_always_gets_in_and_what_waits_too_long_never(
    arrivals: list[tuple[float, float, bool]], typical: float
) -> None:
    overload, now = Overload(wait=1, calm=1), 100.0
    for gap, ahead, brief in arrivals:
        now += gap
        waits = overload.turns_away(now, ahead * BRIEF / 10 if brief else ahead, typical)
        if brief:
            assert waits is None
        elif ahead > overload.wait:
            assert waits == ahead
        if waits is None:
            overload.let_in()
