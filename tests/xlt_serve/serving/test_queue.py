"""Which rows run next: against brute force over all batches."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.serving.queue import WINDOW, Waiting, choose

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=7)


def counted(lengths: list[int]) -> dict[int, int]:
    return {length: lengths.count(length) for length in set(lengths)}


@given(LENGTHS, st.integers(1, 200), st.integers(0, 60))
def test_no_other_batch_is_worth_more(lengths: list[int], budget: int, overhead: int) -> None:
    anchor = lengths[0]
    chosen = choose(counted(lengths), anchor, budget, overhead)
    assert chosen[anchor] >= 1
    assert all(number <= lengths.count(length) for length, number in chosen.items())

    def worth(batch: list[int]) -> float:
        return sum(batch) / (max(batch) * len(batch) + overhead)

    found = [length for length, number in chosen.items() for _ in range(number)]
    assert len(found) == 1 or max(found) * len(found) <= budget
    allowed = [
        [anchor, *others]
        for size in range(len(lengths))
        for others in itertools.combinations(lengths[1:], size)
    ]
    best = max(
        worth(batch)
        for batch in allowed
        if len(batch) == 1 or (max(batch) * len(batch) <= budget and max(batch) <= 2 * anchor + 16)
    )
    assert worth(found) == pytest.approx(best)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 50)), min_size=1, max_size=60),
    st.integers(1, 300),
)
def test_the_row_due_first_is_in_every_batch_and_every_row_in_one(
    rows: list[tuple[int, int]], budget: int
) -> None:
    waiting: Waiting[int] = Waiting()
    for number, (length, due) in enumerate(rows):
        waiting.push(length, due, number)
    left = dict(enumerate(rows))
    while left:
        assert waiting.tokens == sum(length for length, _ in left.values())
        first = min(left, key=lambda number: (left[number][1], number))
        batch = waiting.take(budget)
        assert first in batch
        lengths = [left.pop(number)[0] for number in batch]
        assert len(batch) == 1 or max(lengths) * len(lengths) <= budget
    assert len(waiting) == 0 == waiting.tokens


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 200))
def test_new_rows_do_not_run_before_many_older_ones(lengths: list[int], budget: int) -> None:
    """A row is in the next run only if less than the window's tokens wait in front of it."""
    waiting: Waiting[int] = Waiting()
    for number, length in enumerate(lengths):
        waiting.push(length, float(number), number)
    for number in waiting.take(budget):
        assert sum(lengths[:number]) < WINDOW * budget


@pytest.mark.parametrize("seed", range(5))
def test_padding_is_little_when_many_rows_wait(seed: int) -> None:
    generator = random.Random(seed)
    lengths = [min(128, 4 + int(generator.lognormvariate(2.8, 0.6))) for _ in range(300)]
    waiting: Waiting[int] = Waiting()
    for length in lengths:
        waiting.push(length, 0.0, length)
    real = padded = 0
    while len(waiting):
        batch = waiting.take(1024)
        real, padded = real + sum(batch), padded + max(batch) * len(batch)
    assert real == sum(lengths)
    assert 1 - real / padded <= 0.1


def test_dropped_rows_never_run() -> None:
    waiting: Waiting[str] = Waiting()
    for number in range(6):
        waiting.push(4 + number % 2, float(number), "ab"[number % 2])
    assert waiting.drop(lambda row: row == "a") == 3
    assert waiting.tokens == 15
    assert waiting.take(1000) == ["b", "b", "b"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 20)), max_size=40), st.data())
def test_each_clients_tokens_are_known_without_counting(
    rows: list[tuple[str, int]], data: st.DataObject
) -> None:
    waiting: Waiting[tuple[str, int]] = Waiting()
    left = []
    for number, (client, length) in enumerate(rows):
        waiting.push(length, float(number), (client, length), client)
        left.append((client, length))
        if data.draw(st.booleans()):
            for row in waiting.take(30):
                left.remove(row)
    client = data.draw(st.sampled_from("abc"))
    assert waiting.drop(lambda row: row[0] == client) == sum(row[0] == client for row in left)
    left = [row for row in left if row[0] != client]
    assert waiting.tokens == sum(length for _, length in left)
    for name in "abc":
        assert waiting.tokens_of(name) == sum(length for who, length in left if who == name)
    assert len(waiting) == len(left)
    assert set(waiting._tokens) == {name for name, _ in left}  # nobody is remembered for ever


def test_wrong_calls_say_so() -> None:
    with pytest.raises(ValueError, match="no row of length 3"):
        choose({4: 1}, 3, 10)
    with pytest.raises(ValueError, match="budget"):
        choose({4: 1}, 4, 0)
