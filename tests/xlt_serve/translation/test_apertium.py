"""Apertium es→en from Debian's packages: the real thing, also when it dies or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlt_serve.errors import DependencyError
from xlt_serve.translation import apertium as module
from xlt_serve.translation.apertium import Apertium, bare, framed, known_share, unmarked
from xlt_serve.translation.protocol import Translation, TranslationError, Untranslated
from xlt_serve.translation.router import Engine, Router


async def english(engine: Apertium, *texts: str) -> list[str]:
    return [t.text for t in await engine.translate(texts, "es", "en") if t is not None]


def gone(group: int) -> None:
    """Every process of the group, once whoever adopts orphans has buried them."""
    for _ in range(500):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    pytest.fail("processes are left over")


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_the_stream_gives_back_what_was_put_in(text: str) -> None:
    assert bare(framed(text)) == text.strip()


def test_it_translates(apertium: Apertium) -> None:
    assert asyncio.run(english(apertium, "El gato duerme en la casa.", "Hola mundo.")) == [
        "The cat sleeps in the house.",
        "Hello World.",
    ]


def test_one_pipeline_serves_all_texts(apertium: Apertium) -> None:
    async def many() -> set[int]:
        seen = set()
        for number in range(5):
            await english(apertium, f"Tengo {number} libros.", "La casa es grande.")
            seen.add(apertium._pipes["spa-eng"].process.pid)
        return seen

    assert len(asyncio.run(many())) == 1


def test_answers_belong_to_their_texts(apertium: Apertium) -> None:
    """Also when there is far more than the pipes between the processes hold."""
    texts = [f"El número {n} es un número muy grande y la casa es roja." for n in range(1500)]
    out = asyncio.run(english(apertium, *texts))
    assert len(out) == 1500
    assert all(str(n) in translation for n, translation in enumerate(out))


@pytest.mark.parametrize(
    "text",
    [
        "[corchetes] {llaves} ^gorro$ barra/oblicua arroba@ejemplo <b>html</b> \\ fin",
        "a\0b\nc\td",
        "*asterisco #etiqueta @usuario",
        "🙂 emoji ‏rtl‏ \u200b cero",
        ".[] [] . []",
        "\\",
        "^^^$$$",
        "x" * 5000,
        "palabra " * 3000,
    ],
)
def test_odd_texts_do_not_disturb_the_next(apertium: Apertium, text: str) -> None:
    async def both() -> list[str]:
        await english(apertium, text)
        return await english(apertium, text, "El gato duerme en la casa.")

    assert asyncio.run(both())[1] == "The cat sleeps in the house."


def test_unknown_words_are_unmarked_and_counted(apertium: Apertium) -> None:
    (out,) = asyncio.run(apertium.translate(["El blorfo come manzanas."], "es", "en"))
    assert out is not None
    assert "*" not in out.text
    assert "blorfo" in out.text
    assert out.quality == pytest.approx(3 / 4)
    assert known_share("The *blorfo eats *x") == 0.5
    assert known_share("…") is None
    assert unmarked("The *blorfo, #eat a@b @c 3*4") == "The blorfo, eat a@b c 3*4"


def test_after_a_crash_the_next_call_starts_it_again(apertium: Apertium) -> None:
    async def crash() -> list[str]:
        await english(apertium, "Hola mundo.")
        os.killpg(apertium._pipes["spa-eng"].process.pid, signal.SIGKILL)
        apertium._pipes["spa-eng"].process.wait()
        return await english(apertium, "Hola mundo.")

    assert asyncio.run(crash()) == ["Hello World."]


def test_a_crash_within_a_call_is_an_error_and_the_next_call_works(apertium: Apertium) -> None:
    async def crash() -> list[str]:
        await english(apertium, "Hola mundo.")
        group = apertium._pipes["spa-eng"].process.pid
        os.killpg(group, signal.SIGSTOP)
        call = asyncio.ensure_future(english(apertium, "Hola mundo."))
        await asyncio.sleep(1)
        os.killpg(group, signal.SIGKILL)
        with pytest.raises(TranslationError, match="ended before it had answered"):
            await call
        return await english(apertium, "Hola mundo.")

    assert asyncio.run(crash()) == ["Hello World."]


def test_a_hanging_pipeline_is_ended_and_replaced(apertium: Apertium) -> None:
    one = Router({"apertium": Engine(apertium, timeout=5.0)})

    async def hang() -> tuple[object, object, int]:
        await english(apertium, "Hola mundo.")
        group = apertium._pipes["spa-eng"].process.pid
        os.killpg(group, signal.SIGSTOP)
        (late,) = await one.translate(["La casa es grande."], ["es"], "en")
        (again,) = await one.translate(["La casa es roja."], ["es"], "en")
        return late, again, group

    begun = time.monotonic()
    late, again, group = asyncio.run(hang())
    assert time.monotonic() - begun < 60
    assert isinstance(late, Untranslated)
    assert late.code == "timeout"
    assert again == Translation("The house is red.", "apertium", 1.0)
    gone(group)


def test_closing_ends_every_process(apertium: Apertium) -> None:
    asyncio.run(english(apertium, "Hola mundo."))
    group = apertium._pipes["spa-eng"].process.pid
    apertium.close()
    gone(group)


def test_it_takes_only_installed_pairs(apertium: Apertium) -> None:
    assert apertium.takes("es", "en")
    assert not apertium.takes("zh", "en")
    assert Apertium(codes={"xx": "spa"}).takes("xx", "en")


def test_without_apertium_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    with pytest.raises(DependencyError, match="apt install apertium"):
        Apertium()
