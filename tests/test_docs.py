"""What the pages say exists: links, headings, environment variables."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from tests import ROOT
from xlt_serve.cli.main import COMMANDS

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"\bxlt ([a-z]+(?:\|[a-z]+)*)((?: [^`\n|#]*)?)")
VARIABLE = re.compile(r"\b(?:XLT|OTEL)_[A-Z][A-Z_]+[A-Z]\b")


def prose(page: Path) -> str:
    """Without what is in fences, which may look like headings or links."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_variable_is_in_the_manual_and_every_one_in_the_manual_exists() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("xlt_serve", "training")
        for path in (ROOT / folder).rglob("*.py")
    )
    manual = "".join(
        page.read_text(encoding="utf-8") for page in PAGES if "decisions" not in page.parts
    )
    read, told = set(VARIABLE.findall(code)), set(VARIABLE.findall(manual))
    assert told - read == {"XLT_DATA"}  # the tests' own
    assert read - told == set()


def commands() -> dict[str, argparse.ArgumentParser]:
    """Those of ``xlt``, and of its commands that have commands."""
    kinds = argparse.ArgumentParser().add_subparsers()
    for module in COMMANDS:
        module.add(kinds)
    return dict(kinds.choices)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_that_is_named_exists_with_its_flags(page: Path) -> None:
    known = commands()
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for names, rest in COMMAND.findall(text):
        for name in names.split("|"):
            assert name in known, f"xlt {name}"
            told = known[name].format_help()
            for flag in re.findall(r" (--[a-z][a-z-]+)", rest):
                assert re.search(rf"{flag}\b(?!-)", told), f"xlt {name} {flag}"


def test_every_variable_has_a_row_in_a_table() -> None:
    rows = "".join(
        line.partition(" | ")[0]
        for name in ("serving.md", "limits.md")
        for line in (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    )
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "xlt_serve").rglob("*.py"))
    assert set(VARIABLE.findall(code)) - set(VARIABLE.findall(rows)) == set()


def test_the_quickstart_has_the_commands_of_the_readme() -> None:
    """Which are executed, in `tests/end_to_end/test_readme.py`."""
    said = [
        [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("$ ")]
        for page in (ROOT / "README.md", ROOT / "docs" / "quickstart.md")
    ]
    assert said[0]
    assert [line for line in said[1] if line in said[0]] == said[0]


def test_every_page_is_on_the_site() -> None:
    """By hand in `nav`, decisions by their own page; `make docs` checks what this can't see."""
    site = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
    decisions = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        if re.match(r"\d{4}-", page.name):
            assert f"({page.name})" in decisions
        else:
            assert re.search(rf"\b{page.relative_to(ROOT)}$", site, re.MULTILINE), page


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 800
