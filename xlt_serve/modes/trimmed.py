"""A warning where a trimmed vocabulary was not kept for a text's language.

Text in another script is spelt out letter by letter, or unknown where the script has too many letters
(``xlt_training.exporting.trim``): the model answers all the same, and may be wrong in any way.
"""

from __future__ import annotations

from collections.abc import Sequence

from xlt_serve.translation.items import primary

UNUSUAL = 0.1
"""Share of unknown pieces. Of the shipped tokenizer, trimmed to Latin script, over dev texts of SIB-200:
at most .01 in languages whose letters were kept, at least .21 in Chinese, Japanese and Korean."""

NAMED = 20
"""Languages that a warning names."""

SAME = {"nb": "no", "nn": "no", "fil": "tl"}
"""Codes that are told, and what trimming calls the language."""


def warning(
    kept: Sequence[str], language: str | Sequence[str] | None, unknown: float
) -> str | None:
    """``kept``: the languages that were asked for; empty in bundles that did not note them.
    ``unknown``: the share of the text's pieces that the vocabulary does not have."""
    told = (language,) if isinstance(language, str) else tuple(language or ())
    outside = sorted({each for each in told if _code(each) not in map(_code, kept)})
    if not (outside if kept and told else unknown >= UNUSUAL):
        return None
    was = f"kept for {_listed(kept)}" if kept else "trimmed"
    if kept and told:
        return (
            f"the vocabulary was {was}, not for {_listed(outside)};"
            f" {unknown:.0%} of this text's pieces are unknown"
        )
    spoken = f"is {_listed(told)}" if told else "is not known"
    return (
        f"the vocabulary was {was}; this text's language {spoken},"
        f" and {unknown:.0%} of its pieces are unknown"
    )


def _code(language: str) -> str:
    code = primary(language)
    return SAME.get(code, code)


def _listed(languages: Sequence[str]) -> str:
    return ", ".join(languages[:NAMED]) + (", …" if len(languages) > NAMED else "")
