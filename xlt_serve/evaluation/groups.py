"""Groups of languages that the papers report means of."""

from __future__ import annotations

from collections.abc import Sequence

DISTANT = frozenset({"ar", "hi", "id", "ja", "kk", "ko", "sw", "th", "tr", "ur", "vi", "zh"})
"""From English: of another family than Indo-European, and the Indo-Aryan ones."""


def groups(languages: Sequence[str], source: str) -> dict[str, list[str]]:
    """``all``, ``target`` (all but the source) and ``distant``, those that are not empty."""
    found = {
        "all": list(languages),
        "target": [language for language in languages if language != source],
        "distant": [language for language in languages if language in DISTANT],
    }
    return {name: members for name, members in found.items() if members}
