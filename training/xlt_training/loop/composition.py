"""Which methods can be trained together, and why the others can't.

The rules are over traits: a method says on its class what it does, and none is named here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xlt_training.loop.method import Trait
from xlt_training.methods import METHODS

# Of methods with such a trait there may be one.
ALONE = {
    Trait.FREEZES: "each freezes the encoder in its own way",
    Trait.SECOND_STREAM: "each makes the second stream of a pair",
    Trait.NORM: "each is the norm before the head",
    Trait.TRANSLATIONS: "each adds the translated train sets",
}


@dataclass(frozen=True)
class Rule:
    """Why ``outer`` may not stand before ``inner``, or, if ``either``, not beside it."""

    outer: Trait
    inner: Trait
    why: str
    either: bool = False

    def breaks(self, outer: str, inner: str) -> bool:
        pairs = [(outer, inner), *([(inner, outer)] if self.either else [])]
        return any(_has(one, self.outer) and _has(other, self.inner) for one, other in pairs)


# The first that two methods break is the one they are told.
RULES = (
    Rule(
        Trait.CHANGES_EMBEDDINGS,
        Trait.CHANGES_IDS,
        "{outer} before {inner}: its embeddings would belong to other ids; put {outer} after it",
    ),
    Rule(
        Trait.SUMS_STREAMS,
        Trait.PENALTY,
        "{outer} before {inner}: it would be counted for both streams; put {outer} after it",
    ),
    Rule(
        Trait.MAXIMISES,
        Trait.PENALTY,
        "{outer} before {inner}: the attack would maximise it too; put {outer} after it",
    ),
    Rule(
        Trait.MOVES_WEIGHTS,
        Trait.ANCHOR,
        "{outer} before {inner}: the anchor would hold on to the noise; put {outer} after it",
    ),
    Rule(
        Trait.MOVES_WEIGHTS,
        Trait.FREEZES,
        "{outer} and {inner}: what is not tuned must not be perturbed",
        either=True,
    ),
    Rule(
        Trait.RUNS_STREAMS,
        Trait.OBJECTIVE,
        "{outer} before {inner}: it runs both streams itself and would skip it; put {outer} last",
    ),
    Rule(
        Trait.CHANGES_EMBEDDINGS,
        Trait.RUNS_STREAMS,
        "{outer} with {inner}: its embeddings would belong to one of two streams",
    ),
    Rule(
        Trait.INSERTS_POSITIONS,
        Trait.COMPARES_TOKENS,
        "{outer} and {inner}: prompts stand between the tokens that are compared",
        either=True,
    ),
    Rule(
        Trait.FREEZES_ALL,
        Trait.ANCHOR,
        "{outer} and {inner}: an encoder that does not move needs no anchor",
        either=True,
    ),
    Rule(
        Trait.TRANSLATIONS,
        Trait.SOURCE_WORDS,
        "{outer} before {inner}: {inner} works on words of the source language; put it first",
    ),
    Rule(
        Trait.TRANSLATIONS,
        Trait.CHANGES_IDS,
        "{outer} and {inner}: translated texts have no synonyms or dictionaries here",
        either=True,
    ),
)


def problems(names: Sequence[str]) -> list[str]:
    """Reasons why methods in this order (outermost first) do not compose; none: they do."""
    out = [f"{name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    for trait, why in ALONE.items():
        if len(found := [name for name in names if _has(name, trait)]) > 1:
            out.append(f"{' and '.join(found)}: {why}")
    for place, outer in enumerate(names):
        for inner in names[place + 1 :]:
            broken = (rule.why for rule in RULES if rule.breaks(outer, inner))
            out += [why.format(outer=outer, inner=inner) for why in list(broken)[:1]]
    return out


def across_stages(stages: Sequence[Sequence[str]]) -> list[str]:
    """Reasons why methods of different stages do not go together."""
    found = sorted({name for names in stages for name in names if _has(name, Trait.NORM)})
    return [f"{' and '.join(found)}: {ALONE[Trait.NORM]}"] if len(found) > 1 else []


def _has(name: str, trait: Trait) -> bool:
    return METHODS[name].has(trait)
