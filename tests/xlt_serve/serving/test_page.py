"""The page, opened in Chromium against a running service."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.xlt_serve.serving.processes import Running, serving
from xlt_serve.serving.app import PAGE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    with serving(tmp_path_factory.mktemp("page")) as made:
        yield made


def dom(url: str, folder: Path) -> str:
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder}",
            "--virtual-time-budget=10000",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout


def test_it_asks_nobody_else() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = set(re.findall(r"https?://[^'\"\s>]+", text))
    assert found == {"http://www.w3.org/2000/svg"}  # the name of a format, not a place
    assert "viewport" in text


@pytest.mark.slow
def test_a_text_gets_bars_language_and_timings(running: Running, tmp_path: Path) -> None:
    text = "فاز الفريق بالمباراة النهائية بعد ركلات الترجيح."
    page = dom(f"{running.url}/#text={quote(text)}", tmp_path)
    assert "<h2" in page
    assert re.search(r"<h2[^>]*>sports</h2>", page)
    assert page.count('class="track"') == 7
    assert "Arabic" in page
    assert re.search(r"<dt>ran</dt><dd>[\d.]+ ms", page)


@pytest.mark.slow
def test_the_smoothed_mode_shows_votes_and_certificate(running: Running, tmp_path: Path) -> None:
    text = "The striker scored twice and the home team won the final."
    page = dom(f"{running.url}/#mode=smoothed&text={quote(text)}", tmp_path)
    assert re.search(r"<dt>votes</dt><dd>\d+ of \d+", page)
    assert re.search(r"<dt>certificate</dt><dd[^>]*>none<", page)  # nobody asked for a radius
    page = dom(f"{running.url}/#mode=smoothed&radius=0.02&text={quote(text)}", tmp_path)
    assert re.search(r"<dt>certificate</dt><dd[^>]*>l2 0\.0\d+ at the embeddings, gaussian", page)


@pytest.mark.slow
def test_the_paired_mode_goes_to_the_model_that_has_it(running: Running, tmp_path: Path) -> None:
    given = "mode=paired&text=%D9%81%D8%A7%D8%B2&translation=The team won the final."
    page = dom(f"{running.url}/#{given.replace(' ', '%20')}", tmp_path)
    assert "The team won the final." in page
    assert "topics-paired" in page.rpartition("<footer")[2]
    assert "λ" in page


@pytest.mark.slow
def test_a_text_is_never_markup(running: Running, tmp_path: Path) -> None:
    text = "<img src=x onerror=\"document.title='owned'\"> a goal"
    page = dom(f"{running.url}/#text={quote(text)}", tmp_path)
    assert "<title>topics · xlt-serve</title>" in page
    assert "<img" not in page
