from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.conftest import FOOD, SPORTS
from xlt_serve import load

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def client_of(bundle: Path) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLT_BUNDLE", str(bundle))
        from xlt_serve.service import XltService

        with TestClient(XltService.to_asgi()) as client:
            yield client


@pytest.fixture(scope="module")
def client(bundle: Path) -> Iterator[TestClient]:
    yield from client_of(bundle)


def test_classify_answers_like_the_library(client: TestClient, bundle: Path) -> None:
    texts = [SPORTS, "", FOOD]
    answer = client.post("/classify", json={"texts": texts})
    assert answer.status_code == 200
    body = answer.json()
    assert body["predictions"] == [p.to_dict() for p in load(bundle).predict(texts)]
    assert body["bundle"]["name"] == "toy"
    assert set(body["timings"]) == {"queue_ms", "predict_ms"}


def test_a_single_text_is_a_list_of_one(client: TestClient) -> None:
    body = client.post("/classify", json={"texts": SPORTS}).json()
    assert [p["label"] for p in body["predictions"]] == ["sports"]


@pytest.mark.parametrize(
    ("request_body", "status"),
    [
        ({}, 422),
        ({"texts": ["a"], "pairs": [["a", "b"]]}, 422),
        ({"texts": ["a"], "long": "shrink"}, 422),
        ({"texts": ["a"], "abstain_below": 7}, 422),
        ({"texts": 7}, 400),
        ({"texts": ["a"], "max_length": "many"}, 400),
    ],
)
def test_wrong_requests(client: TestClient, request_body: dict[str, Any], status: int) -> None:
    answer = client.post("/classify", json=request_body)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_pairs_to_a_single_text_bundle_fail_item_by_item(client: TestClient) -> None:
    body = client.post("/classify", json={"pairs": [["a", "b"]]}).json()
    assert body["predictions"][0]["error"]["code"] == "shape"


def test_an_item_of_the_wrong_type_does_not_sink_its_neighbours(client: TestClient) -> None:
    body = client.post("/classify", json={"texts": [SPORTS, None, 5]}).json()
    codes = [p["error"] and p["error"]["code"] for p in body["predictions"]]
    assert codes == [None, "not_text", "not_text"]
    assert body["predictions"][0]["label"] == "sports"


def test_health(client: TestClient) -> None:
    assert client.get("/livez").status_code == 200
    assert client.get("/readyz").status_code == 200
