"""Pages of others: closed unless configured."""

from __future__ import annotations

import pytest

from tests.xlt_serve.serving.conftest import Local, Start, valid
from xlt_serve.errors import UsageError
from xlt_serve.serving import cors

OURS, FOREIGN = "https://app.example.org", "https://evil.example"
KEY = "k" * 16
ASK = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
HEADERS = ("access-control-allow-origin", "access-control-allow-methods")


@pytest.fixture(scope="module")
def opened(start: Start) -> Local:
    return start(origins=(OURS, "http://localhost:8000"), keys=(KEY,))


def test_nothing_is_said_to_other_pages(service: Local) -> None:
    for method in ("OPTIONS", "POST", "GET"):
        for path in ("/classify", "/models", "/nowhere"):
            got = service.request(method, path, headers={"Origin": FOREIGN, **ASK})
            assert not [name for name in got.headers if name.startswith("access-control")]
    assert service.options("/classify", headers={"Origin": FOREIGN, **ASK}).status_code == 405


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_what_a_browser_sends_without_asking_does_not_run(service: Local, kind: str) -> None:
    headers = {"Origin": FOREIGN, "Content-Type": kind}
    got = service.post("/classify", content=b'{"texts": ["a"]}', headers=headers)
    assert got.status_code == 415
    assert valid("Error", got.json())["error"]["code"] == "content_type"


def test_a_preflight_of_a_page_that_is_named_needs_no_key(opened: Local) -> None:
    got = opened.options("/models", headers={"Origin": OURS, **ASK})
    assert (got.status_code, got.content) == (204, b"")
    assert got.headers["access-control-allow-origin"] == OURS
    assert {"GET", "POST"} <= set(got.headers["access-control-allow-methods"].split(", "))
    assert "X-API-Key" in got.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in got.headers
    assert got.headers["vary"] == "Origin"
    assert opened.options("/nowhere", headers={"Origin": OURS, **ASK}).status_code == 404


def test_its_page_reads_answers_and_errors(opened: Local) -> None:
    headers = {"Origin": OURS, "X-API-Key": KEY}
    good = opened.post("/classify", json={"texts": ["a"]}, headers=headers)
    wrong = opened.post("/classify", json={}, headers=headers)
    shut = opened.post("/classify", json={}, headers={"Origin": OURS})
    assert [each.status_code for each in (good, wrong, shut)] == [200, 422, 401]
    for each in (good, wrong, shut):
        assert each.headers["access-control-allow-origin"] == OURS
        assert "X-Request-Id" in each.headers["access-control-expose-headers"]


def test_others_get_no_further_than_before(opened: Local) -> None:
    for origin in (FOREIGN, "null", OURS + ".evil.example", OURS.upper(), "https://app.example"):
        got = opened.options("/classify", headers={"Origin": origin, **ASK})
        assert got.status_code == 401
        assert not set(HEADERS) & set(got.headers)
        assert got.headers["vary"] == "Origin"


def test_a_star_is_everybody(start: Start) -> None:
    client = start(origins=("*",))
    asked = client.options("/classify", headers={"Origin": FOREIGN, **ASK})
    got = client.post("/classify", json={"texts": ["a"]}, headers={"Origin": FOREIGN})
    assert (asked.status_code, got.status_code) == (204, 200)
    assert {each.headers[HEADERS[0]] for each in (asked, got)} == {"*"}


@pytest.mark.parametrize(
    "wrong",
    [
        *("example.org", "https://a.org/", "https://a.org/x", "null", "a"),
        *("https://a.org:443", "http://[::1]:80"),  # which no browser sends
    ],
)
def test_origins_are_origins(wrong: str) -> None:
    assert cors.checked([OURS, "http://[::1]:8080", "*"])[0] == OURS
    with pytest.raises(UsageError, match=r"XLT_CORS_ORIGINS=.*is no origin"):
        cors.checked([wrong])
