"""English text of every subject: WordNet's definitions and examples, as Debian ships them.

A hundred thousand short sentences that use the whole vocabulary, where the other texts at hand
repeat a part of it; code-switched, they carry that vocabulary into the other languages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from xlt_training.encoders.dictionaries import unpack

PACKAGE = "wordnet-base"
FILES = ("data.noun", "data.verb", "data.adj", "data.adv")


def fetch(folder: Path) -> list[str]:
    """Distinct texts, in WordNet's order; none where the package can't be had."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(f"**/{FILES[0]}")) and not unpack(PACKAGE, folder):
        print(f"glosses: {PACKAGE} can't be fetched, going on without it", flush=True)
        return []
    found: dict[str, None] = {}
    for name in FILES:
        for line in next(folder.glob(f"**/{name}")).read_text(encoding="utf-8").split("\n"):
            found.update(dict.fromkeys(texts(line)))
    return list(found)


def texts(line: str) -> Iterator[str]:
    """Of a line of a WordNet data file: the words with their definition, then each example.

    ``offset file type count word id word id … | definition; "example"; …``
    """
    head, bar, gloss = line.partition(" | ")
    fields = head.split()
    if line.startswith("  ") or not bar:  # the licence on top of each file
        return
    words = [fields[4 + 2 * n].split("(")[0].replace("_", " ") for n in range(int(fields[3], 16))]
    definition, *examples = gloss.split('; "')
    yield f"{', '.join(words)}: {definition.strip()}"
    for example in examples:
        text = example.partition('"')[0].strip()
        if len(text.split()) >= 4:
            yield text
