"""Some rows of many, of each label its share."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence

from xlt_training.loop.types import Example


def drawn(examples: Sequence[Example], most: int, seed: int = 0) -> list[Example]:
    """At most ``most`` of them in their order; the first ones would be of one label where a file is
    sorted by it. Translations with the same labels in the same order are drawn alike."""
    if len(examples) <= most:
        return list(examples)
    places: dict[str, list[int]] = defaultdict(list)
    for place, example in enumerate(examples):
        places[example.label].append(place)
    generator = random.Random(seed)
    counts = shares({label: len(mine) for label, mine in places.items()}, max(0, most))
    taken = {n for label in sorted(places) for n in generator.sample(places[label], counts[label])}
    return [example for place, example in enumerate(examples) if place in taken]


def shares(sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """``most`` over labels by their sizes, largest remainders first; one at least of each where there are
    as many as labels."""
    whole = sum(sizes.values())
    out = {label: most * size // whole for label, size in sizes.items()}
    rest = sorted(sizes, key=lambda label: (-(most * sizes[label] % whole), label))
    for label in rest[: most - sum(out.values())]:
        out[label] += 1
    for label in sorted(sizes):
        if most >= len(sizes) and not out[label]:
            out[max(out, key=lambda other: (out[other], other))] -= 1
            out[label] = 1
    return out
