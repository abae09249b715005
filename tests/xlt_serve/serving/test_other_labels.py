"""A swap to other labels or another task is taken only by who says that it is meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xlt_serve.serving.conftest import Start, copied, valid
from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle
from xlt_serve.client import swapping
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.swaps import differences, refuse_others

ADMIN = {"X-API-Key": "a" * 16}
TEXT = {"texts": ["Die Mannschaft gewann das Finale."]}
SHIPPED = bundles.described()


def changed(**values: Any) -> Bundle:
    return replace(SHIPPED, manifest=replace(SHIPPED.manifest, **values))


def test_other_labels_need_force(start: Start, tmp_path: Path) -> None:
    client = start(admin_keys=("a" * 16,))
    other = copied(tmp_path / "other", "with other labels")
    labels = ("arts", *SHIPPED.manifest.labels[1:])
    bundles.save(other, replace(bundles.described(other).manifest, labels=labels))
    swap = valid("SwapRequest", {"name": "topics", "bundle": str(other)})
    refused = client.post("/models", json=swap, headers=ADMIN)
    assert refused.status_code == 409
    error = valid("Error", refused.json())["error"]
    assert error["code"] == "needs_force"
    assert "labels lost: entertainment; labels gained: arts" in error["message"]
    assert '"force": true' in error["message"]
    assert client.get("/models").json()["generation"] == 0
    before = client.post("/classify", json=TEXT).json()["predictions"][0]["probabilities"]
    assert "entertainment" in before

    beside = client.post("/models", json=swap | {"name": "new"}, headers=ADMIN)
    assert beside.status_code == 200, beside.text  # nobody goes by its labels yet
    forced = valid("SwapRequest", swap | {"force": True})
    assert client.post("/models", json=forced, headers=ADMIN).status_code == 200
    after = client.post("/classify", json=TEXT).json()["predictions"][0]["probabilities"]
    assert set(after) == set(labels)
    again = client.post("/models", json={"name": "topics"}, headers=ADMIN)
    assert again.status_code == 200, again.text  # the same labels: no force


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"task": "emotions"}, ["task emotions instead of sib200"]),
        ({"pair": True}, ["pairs of texts instead of texts"]),
        (
            {"labels": ("a", "b"), "task": "x"},
            ["labels lost: ent", "labels gained: a, b", "task x"],
        ),
        ({"labels": SHIPPED.manifest.labels[1:]}, ["labels lost: entertainment"]),
        ({"labels": SHIPPED.manifest.labels[::-1], "notes": "x", "max_length": 64}, []),
    ],
)
def test_what_clients_would_notice(values: dict[str, Any], says: list[str]) -> None:
    found = differences(SHIPPED.manifest, changed(**values).manifest)
    assert len(found) == len(says)
    assert all(one.startswith(start) for one, start in zip(found, says, strict=True))
    if says:
        with pytest.raises(Refusal) as caught:
            refuse_others("mine", SHIPPED, changed(**values))
        assert caught.value.status == 409
        assert all(start in str(caught.value) for start in says)
    else:
        refuse_others("mine", SHIPPED, changed(**values))
    refuse_others("mine", None, changed(**values))


NAMES = st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=30, unique=True)


@given(NAMES, NAMES)
def test_labels_are_compared_as_sets(one: list[str], other: list[str]) -> None:
    before, after = changed(labels=tuple(one)).manifest, changed(labels=tuple(other)).manifest
    assert (differences(before, after) == []) == (set(one) == set(other))
    assert len(differences(before, after)) == bool({*one} - {*other}) + bool({*other} - {*one})


def test_a_refusal_of_many_labels_is_short() -> None:
    many = tuple("x" * 900 + str(number) for number in range(5000))
    with pytest.raises(Refusal, match=r"5000 in all") as caught:
        refuse_others("mine", SHIPPED, changed(labels=many))
    assert len(str(caught.value)) < 3000


def test_a_client_says_force_only_where_it_is_meant() -> None:
    """Services from before it refuse keys that they do not know."""
    assert swapping("a", None, False) == {"name": "a", "bundle": None}
    assert swapping("a", "b", True) == {"name": "a", "bundle": "b", "force": True}
