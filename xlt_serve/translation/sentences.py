"""A text in pieces that a translator was made for: sentences, none too long."""

from __future__ import annotations

import re

LONGEST = 400
SHORTEST = 24
"""Characters below which an end of a sentence is rather an abbreviation's."""

_ENDS = re.compile(r"(?<=[.!?…؟۔।॥])\s+|(?<=[。！？])|\s*\n\s*")


def pieces(text: str, longest: int = LONGEST) -> list[str]:
    """Sentences of ``text``, each of at most ``longest`` characters; only space is lost."""
    out: list[str] = []
    held = ""
    for sentence in _ENDS.split(text):
        held = f"{held} {sentence}".strip() if held else sentence.strip()
        if len(held) >= SHORTEST or _is_dense(held):
            out += _cut(held, longest)
            held = ""
    return out + _cut(held, longest)


def head(text: str, longest: int) -> str:
    """The beginning of ``text``, up to a space if there is one near the limit."""
    return text if len(text) <= longest else _cut(text[: longest + 1], longest)[0]


def _cut(text: str, longest: int) -> list[str]:
    out = []
    while len(text) > longest:
        space = text.rfind(" ", longest // 2, longest + 1)
        end = space if space > 0 else longest
        out.append(text[:end].strip())
        text = text[end:].strip()
    return [*out, text] if text else out


def _is_dense(text: str) -> bool:
    """Chinese and Japanese say as much in a third of the characters."""
    return len(text) >= SHORTEST // 3 and text[-1] in "。！？"
