"""Groups of languages that the papers report means of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

DISTANT = frozenset({"ar", "id", "ja", "kk", "ko", "sw", "th", "tr", "vi", "zh"})
"""Languages of another family than Indo-European, as IsoZCL's "Distant": of XNLI ar sw th tr vi zh."""


def groups(
    languages: Sequence[str], source: str, distant: Collection[str] = DISTANT
) -> dict[str, list[str]]:
    """``all``, ``target`` (all but the source) and ``distant``, those that are not empty."""
    found = {
        "all": list(languages),
        "target": [language for language in languages if language != source],
        "distant": [language for language in languages if language in distant],
    }
    return {name: members for name, members in found.items() if members}
