"""A bounded memory of translations: the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from xlt_serve.translation.protocol import Translation


@dataclass(frozen=True, slots=True)
class Key:
    """Another engine's translation of the same text is another one."""

    engine: str
    source: str
    target: str
    text: str


@dataclass
class TranslationCache:
    """At most ``entries`` translations and ``characters`` of text and translation together."""

    entries: int = 10_000
    characters: int = 10_000_000
    held: int = field(default=0, init=False)
    _kept: OrderedDict[Key, Translation] = field(default_factory=OrderedDict, init=False)

    def get(self, key: Key) -> Translation | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def put(self, key: Key, value: Translation) -> None:
        if self.entries < 1:
            return
        if (old := self._kept.pop(key, None)) is not None:
            self.held -= _size(key, old)
        self._kept[key] = value
        self.held += _size(key, value)
        while len(self._kept) > self.entries or self.held > self.characters:
            gone, its = self._kept.popitem(last=False)
            self.held -= _size(gone, its)

    def __len__(self) -> int:
        return len(self._kept)


def _size(key: Key, value: Translation) -> int:
    return len(key.text) + len(value.text)
