"""Words of a text: where they begin and end, and in which case they stand."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Literal

from xlt_serve.errors import UsageError

UNSPACED = frozenset({"zh", "ja", "th", "km", "lo", "my"})
"""Languages written without spaces between words."""

Case = Literal["lower", "title", "upper"]


def refuse_unspaced(what: str, language: str, remedy: str) -> None:
    """What works on words needs spaces between them."""
    if language in UNSPACED:
        raise UsageError(
            f"{what} {language}",
            "works on words, and this language is written without spaces",
            remedy,
        )


def parts(word: str) -> tuple[str, str, str]:
    """What stands before a word's letters, they, and what stands after them. Vowel signs are part of
    a word, so punctuation is told by its Unicode category."""
    inner = [i for i, c in enumerate(word) if unicodedata.category(c)[0] not in "PSZC"]
    if not inner:
        return word, "", ""
    return word[: inner[0]], word[inner[0] : inner[-1] + 1], word[inner[-1] + 1 :]


def case_of(word: str) -> Case:
    if word.isupper() and len(word) > 1:
        return "upper"
    return "title" if word[:1].isupper() else "lower"


def in_case(word: str, case: Case) -> str:
    """A word that is in lower case, in another."""
    if case == "upper":
        return word.upper()
    return word[:1].upper() + word[1:] if case == "title" else word


def rewrite(text: str, choose: Callable[[str], str]) -> str:
    """``text`` with ``choose`` applied to each word in lower case; case and punctuation are kept.

    A word for which ``choose`` gives the word itself stays as it was, to the letter.
    """
    out = []
    for word in text.split():
        before, core, after = parts(word)
        chosen = choose(core.lower()) if core else core
        same = chosen == core.lower()
        out.append(word if same else before + in_case(chosen, case_of(core)) + after)
    return " ".join(out)
