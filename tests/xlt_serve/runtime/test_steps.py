"""Steps: whoever runs the rows, in whatever batches, the answer is the same."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.errors import ItemError
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.steps import (
    Driven,
    Outputs,
    RunRequest,
    Steps,
    TranslateRequest,
    drive,
    join,
)
from xlt_serve.types import Outcome, Translation


@dataclass(frozen=True)
class Word:
    text: str

    @property
    def length(self) -> int:
        return len(self.text)


def squares_until(limit: int) -> Steps[list[int]]:
    """Asks for the squares of 1, 2, … in growing asks, until one exceeds the limit."""
    found: list[int] = []
    while not found or found[-1] <= limit:
        wanted = range(len(found) + 1, 2 * len(found) + 2)
        outputs = yield RunRequest("squares", [Word("x" * n) for n in wanted])
        found += outputs["values"].tolist()
    return found


@given(st.integers(0, 500), st.integers(1, 100))
def test_driving_gives_the_generators_answer(limit: int, budget: int) -> None:
    def run(ask: RunRequest) -> Outputs:
        lengths = [row.length for row in ask.rows]
        parts = [
            (batch, {"values": np.array([lengths[i] ** 2 for i in batch])})
            for batch in plan(lengths, budget)
        ]
        return join(parts, len(ask.rows))

    found = drive(squares_until(limit), run)
    assert found == [n * n for n in range(1, len(found) + 1)]
    assert found[-1] > limit


def test_steps_without_an_ask_have_an_answer_too() -> None:
    def nothing() -> Steps[str]:
        return "done"
        yield RunRequest("never", [])

    assert drive(nothing(), lambda ask: {}) == "done"


def shouted() -> Steps[str]:
    notes: list[str] = []
    found = yield TranslateRequest(
        ["a", "b"], ["de", None], "en", lambda: notes.append("meanwhile")
    )
    assert notes == ["meanwhile"]
    yield RunRequest("squares", [])
    return " ".join(each.text for each in found)


def test_translations_are_under_way_before_anything_runs() -> None:
    asked: list[TranslateRequest] = []
    done: Future[list[Outcome]] = Future()

    def submit(request: TranslateRequest) -> Future[list[Outcome]]:
        asked.append(request)
        return done

    driven = Driven(shouted(), submit)
    assert [list(request.texts) for request in asked] == [["a", "b"]]
    done.set_result([Translation("A", "me"), Translation("B", "me")])
    assert driven.finish(lambda request: {}) == "A B"


def test_what_goes_wrong_with_translating_is_raised_and_nothing_goes_on() -> None:
    failed: Future[list[Outcome]] = Future()
    failed.set_exception(TypeError("no engine has no name"))
    with pytest.raises(TypeError, match="has no name"):
        drive(shouted(), lambda request: {}, lambda request: failed)

    def broken() -> Steps[None]:
        yield TranslateRequest(["a"], ["de"], "en", lambda: 1 / 0)

    left: Future[list[Outcome]] = Future()
    with pytest.raises(ZeroDivisionError):
        drive(broken(), lambda request: {}, lambda request: left)
    assert left.cancelled()
    open_: Future[list[Outcome]] = Future()
    Driven(shouted(), lambda request: open_).cancel()
    assert open_.cancelled()
    with pytest.raises(TypeError, match="2 texts are to be translated"):
        drive(shouted(), lambda request: {})


def test_join_puts_every_output_back_in_order() -> None:
    parts = [
        ([2, 0], {"a": np.array([[2.0], [0.0]]), "b": np.array([20, 0])}),
        ([1], {"a": np.array([[1.0]]), "b": np.array([10])}),
    ]
    whole = join(parts, 3)
    assert whole["a"].tolist() == [[0.0], [1.0], [2.0]]
    assert whole["b"].tolist() == [0, 10, 20]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_a_row_that_is_not_finite_cannot_be_read(bad: float) -> None:
    values = np.array([[0.0, 1.0], [2.0, bad], [4.0, 5.0]])
    for found in (
        join([([0, 1, 2], {"a": values, "ratio": np.zeros(3)})], 3),
        join([([2, 1], {"a": values[[2, 1]]}), ([0], {"a": values[:1]})], 3),
        join([([0, 1, 2], {"a": np.zeros((3, 2)), "ratio": np.array([0, bad, 0])})], 3),
        join([([0, 1, 2], {"a": np.zeros((3, 2)), "deep": values[:, None]})], 3),
    ):
        assert np.isfinite(found.rows(0, 1)["a"]).all()
        assert np.isfinite(found.rows(2, 3)["a"]).all()
        for start, end in [(1, 2), (0, 2), (0, 3)]:
            with pytest.raises(ItemError, match="not a finite number") as raised:
                found.rows(start, end)
            assert raised.value.code == "not_finite"
        with pytest.raises(ItemError):
            found["a"]
        with pytest.raises(ItemError):
            dict(found)


def test_outputs_of_halves_and_of_nothing() -> None:
    half = np.array([[60_000.0], [np.inf]], dtype=np.float16)
    found = join([([0, 1], {"a": half})], 2)
    assert found.rows(0, 1)["a"][0, 0] == 60_000
    with pytest.raises(ItemError):
        found.rows(1, 2)
    assert join([], 0).rows(0, 0) == {}
    assert join([([], {"a": np.zeros((0, 3))})], 0)["a"].shape == (0, 3)
