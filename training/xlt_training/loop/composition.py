"""Which methods can be trained together, and why the others can't."""

from __future__ import annotations

from collections.abc import Sequence

FREEZE = {"bitfit", "soft_prompt", "adapters"}
CHANGE_IDS = {"ear", "code_switch"}
CHANGE_EMBEDDINGS = {"noise", "adversarial"}
TWO_STREAMS = {"ear", "code_switch", "xmixup"}
NORMS = {"batch_norm", "isobn"}
ANCHORS = {"l2_anchor", "ewc"}
ON_SOURCE_WORDS = {"synonyms", "word_swap", "ear", "code_switch"}
TRANSLATED = {"translate_train", "xmixup"}
PENALTIES = ANCHORS | {"isotropy", "cosine"}
OBJECTIVES = CHANGE_IDS | CHANGE_EMBEDDINGS | {"xmixup", "isotropy", "cosine"} | ANCHORS


def problems(names: Sequence[str]) -> list[str]:
    """Reasons why methods in this order (outermost first) do not compose; none: they do."""
    out = []
    for name in sorted({name for name in names if names.count(name) > 1}):
        out.append(f"{name} is there twice")
    for group, why in (
        (FREEZE, "each freezes the encoder in its own way"),
        (TWO_STREAMS, "each makes the second stream of a pair"),
        (NORMS, "each is the norm before the head"),
        (TRANSLATED, "each adds the translated train sets"),
    ):
        if len(found := [name for name in names if name in group]) > 1:
            out.append(f"{' and '.join(found)}: {why}")
    for before, name in enumerate(names):
        for other in names[before + 1 :]:
            if why := _order(name, other):
                out.append(why)
    return out


def across_stages(stages: Sequence[Sequence[str]]) -> list[str]:
    """Reasons why methods of different stages do not go together."""
    found = sorted({name for names in stages for name in names if name in NORMS})
    return [f"{' and '.join(found)}: each is the norm before the head"] if len(found) > 1 else []


def _order(outer: str, inner: str) -> str:
    """Why ``outer`` may not stand before ``inner``."""
    if outer in CHANGE_EMBEDDINGS and inner in CHANGE_IDS:
        return f"{outer} before {inner}: its embeddings would belong to other ids; put {outer} after it"
    if outer == "ear" and inner in PENALTIES:
        return f"ear before {inner}: it would be counted for both streams; put ear after it"
    if outer == "adversarial" and inner in PENALTIES:
        return f"adversarial before {inner}: the attack would maximise it too; put adversarial after it"
    if outer == "noisy_tune" and inner in ANCHORS:
        return f"noisy_tune before {inner}: the anchor would hold on to the noise; put noisy_tune after it"
    if outer == "xmixup" and inner in OBJECTIVES:
        return (
            f"xmixup before {inner}: it runs both streams itself and would skip it; put xmixup last"
        )
    if outer in CHANGE_EMBEDDINGS and inner == "xmixup":
        return f"{outer} with xmixup: its embeddings would belong to one of two streams"
    if {outer, inner} & FREEZE == {"soft_prompt"} and {outer, inner} & {"ear", "xmixup"}:
        return f"{outer} and {inner}: prompts stand between the tokens that are compared"
    if {outer, inner} & {"soft_prompt", "adapters"} and {outer, inner} & ANCHORS:
        return f"{outer} and {inner}: an encoder that does not move needs no anchor"
    if outer in TRANSLATED and inner in ON_SOURCE_WORDS:
        return (
            f"{outer} before {inner}: {inner} works on words of the source language; put it first"
        )
    if {outer, inner} & TRANSLATED and {outer, inner} & CHANGE_IDS:
        return f"{outer} and {inner}: translated texts have no synonyms or dictionaries here"
    return ""
