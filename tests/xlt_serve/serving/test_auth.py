"""What each key is good for."""

from __future__ import annotations

import pytest

from xlt_serve.serving import auth
from xlt_serve.serving.auth import KeyPolicy, Keys
from xlt_serve.serving.failures import Refusal
from xlt_serve.serving.routes import Key

FULL = KeyPolicy(Keys(["u" * 16, "v" * 16]), Keys(["a" * 16]), Keys(["s" * 16]))
USERS = KeyPolicy(Keys(["u" * 16]))
SCRAPERS = KeyPolicy(scrapers=Keys(["s" * 16]))


def outcome(policy: KeyPolicy, needed: Key, given: str, local: bool = False) -> str | int:
    try:
        return policy.holder(needed, given.encode(), local)
    except Refusal as refused:
        return refused.status


@pytest.mark.parametrize(
    ("policy", "needed", "given", "local", "result"),
    [
        (FULL, "", "", False, ""),
        (FULL, "user", "u" * 16, False, "key 0"),
        (FULL, "user", "v" * 16, False, "key 1"),
        (FULL, "user", "a" * 16, False, "admin key 0"),
        (FULL, "user", "s" * 16, False, 401),
        (FULL, "user", "", True, 401),
        (FULL, "admin", "a" * 16, False, "admin key 0"),
        (FULL, "admin", "u" * 16, True, 401),
        (USERS, "admin", "u" * 16, True, 403),
        (FULL, "scrape", "s" * 16, False, "scrape key 0"),
        (FULL, "scrape", "u" * 16, False, "key 0"),
        (FULL, "scrape", "", False, 401),
        (FULL, "scrape", "", True, 401),
        (USERS, "scrape", "", False, 401),
        (USERS, "scrape", "", True, ""),
        (SCRAPERS, "scrape", "", True, 401),
        (SCRAPERS, "user", "", False, ""),
        (FULL, "outside", "", True, ""),
        (FULL, "outside", "", False, 401),
        (FULL, "outside", "s" * 16, False, 401),
        (FULL, "outside", "u" * 16, False, "key 0"),
        (KeyPolicy(), "scrape", "", False, ""),
        (KeyPolicy(), "outside", "", False, ""),
        (KeyPolicy(), "user", "made up by the client", False, ""),
    ],
)
def test_who_may_what(
    policy: KeyPolicy, needed: Key, given: str, local: bool, result: str | int
) -> None:
    assert outcome(policy, needed, given, local) == result


def test_a_key_is_kept_as_its_digest() -> None:
    kept = repr(vars(Keys(["u" * 16])))
    assert "u" * 16 not in kept


def test_keys_come_in_either_header() -> None:
    assert auth.given([(b"authorization", b"bearer  abc ")]) == b"abc"
    assert auth.given([(b"x-api-key", b" abc")]) == b"abc"
    assert auth.given([(b"authorization", b"Basic abc")]) == b""
