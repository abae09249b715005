"""A LibreTranslate-shaped server in this process, well behaved and otherwise."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.xlt_serve.translation.engines import Answer, libretranslate, shout
from xlt_serve.errors import UsageError
from xlt_serve.translation.libretranslate import LARGEST, Http
from xlt_serve.translation.protocol import PairRefused, Translation, TranslationError, Untranslated
from xlt_serve.translation.router import Engine, Router


def translate(engine: Http, *texts: str) -> list[Any]:
    async def run() -> list[Any]:
        return list(await engine.translate(texts, "zh", "en"))

    try:
        return asyncio.run(run())
    finally:
        engine.close()


def test_a_batch_is_one_request() -> None:
    with libretranslate(shout) as (url, asked):
        out = translate(Http(url, api_key="k", codes={"zh": "zh-Hans"}), "a", "b")
    assert out == [Translation("A", "http"), Translation("B", "http")]
    (body,) = asked
    assert body["q"] == ["a", "b"]
    assert (body["source"], body["target"], body["format"]) == ("zh-Hans", "en", "text")
    assert body["api_key"] == "k"
    assert body["path"] == "/translate"


@pytest.mark.parametrize("path", ["/", "/translate", "/api", "/api/translate"])
def test_the_address_may_have_a_path(path: str) -> None:
    with libretranslate(shout) as (url, asked):
        translate(Http(url + path), "a")
    assert asked[0]["path"] == path.rstrip("/").removesuffix("/translate") + "/translate"


def test_the_connection_is_kept_and_renewed() -> None:
    hang_up = False

    def reply(body: dict[str, Any]) -> Answer | None:
        nonlocal hang_up
        if hang_up:
            hang_up = False
            return None
        return shout(body)

    with libretranslate(reply) as (url, asked):
        engine = Http(url, connections=1)

        async def run() -> None:
            nonlocal hang_up
            for _ in range(3):
                await engine.translate(["a"], "zh", "en")
            hang_up = True
            await engine.translate(["b"], "zh", "en")

        asyncio.run(run())
        engine.close()
    assert [body["q"] for body in asked] == [["a"]] * 3 + [["b"], ["b"]]
    assert len({body["port"] for body in asked}) == 2


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (lambda _: (500, b'{"error": "out of memory"}'), TranslationError, "500: out of memory"),
        (lambda _: (400, b'{"error": "zh is not supported"}'), PairRefused, "zh is not supported"),
        (lambda _: (429, b'{"error": "slow down"}'), TranslationError, "429"),
        (lambda _: (200, b"<html>hello</html>"), TranslationError, "not JSON"),
        (lambda _: (200, b"\xff\xfe"), TranslationError, "not JSON"),
        (lambda _: (200, b"[" * 100_000), TranslationError, "not JSON"),
        (lambda _: (200, b"{}"), TranslationError, "2 translations"),
        (lambda _: (200, b'{"translatedText": "one"}'), TranslationError, "2 translations"),
        (lambda _: (200, b'{"translatedText": ["a"]}'), TranslationError, "2 translations"),
        (lambda _: (200, b" " * (LARGEST + 1)), TranslationError, "more than"),
    ],
)
def test_bad_answers_are_errors(
    reply: Callable[[dict[str, Any]], Answer], error: type[Exception], words: str
) -> None:
    with libretranslate(reply) as (url, _), pytest.raises(error, match=words):
        translate(Http(url), "a", "b")


def test_a_text_without_a_translation_is_none() -> None:
    with libretranslate(lambda _: (200, b'{"translatedText": ["A", null]}')) as (url, _):
        assert translate(Http(url), "a", "b") == [Translation("A", "http"), None]


def test_nobody_there_is_an_error() -> None:
    with libretranslate(shout) as (url, _):
        pass
    with pytest.raises(OSError, match="refused"):
        translate(Http(url), "a")


def test_a_server_that_drips_is_given_up() -> None:
    with libretranslate(shout, drip=0.05) as (url, _):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            translate(Http(url, timeout=0.3), "a" * 100)
        assert time.monotonic() - begun < 4


def test_a_hanging_server_costs_the_timeout_and_no_more() -> None:
    over = threading.Event()

    def hang(body: dict[str, Any]) -> Answer:
        over.wait(60)
        return shout(body)

    with libretranslate(hang) as (url, _), libretranslate(shout) as (other, _):
        slow, quick = Http(url, "slow", timeout=0.2), Http(other, "quick")
        one = Router({"slow": Engine(slow, timeout=0.2), "quick": Engine(quick)})
        begun = time.monotonic()
        (out,) = asyncio.run(one.translate(["a"], ["zh"], "en"))
        assert time.monotonic() - begun < 20
        over.set()
        one.close()
    assert out == Translation("A", "quick")


def test_nonsense_from_a_server_is_not_passed_on() -> None:
    def echo(body: dict[str, Any]) -> Answer:
        return 200, json.dumps({"translatedText": body["q"]}).encode()

    with libretranslate(echo) as (url, _):
        one = Router({"http": Engine(Http(url))})
        (out,) = asyncio.run(one.translate(["今天天气很好"], ["zh"], "en"))
        one.close()
    assert isinstance(out, Untranslated)
    assert out.code == "nonsense"


@pytest.mark.parametrize("url", ["localhost:5000", "ftp://x", "http://", ""])
def test_an_address_must_be_one(url: str) -> None:
    with pytest.raises(UsageError, match=r"http\(s\)"):
        Http(url)
