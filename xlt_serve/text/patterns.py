"""The regular expressions of tokenizers: those of known tokenizers, and consent to others.

A ``tokenizer.json`` may bring any expression. The tokenizers library runs it with backtracking: over
some texts an expression panics after millions of steps, or takes seconds for each text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xlt_serve.errors import BundleError

TRUST = "XLT_TRUST_TOKENIZER"

_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
KNOWN = frozenset(
    {
        # SentencePiece models as transformers converts them: XLM-R, mT5, mBART, NLLB, DeBERTa, …
        " {2,}",
        r"\s{2,}|[\n\r\t]",
        r"[\n\r\t]",
        r"\n",
        r"\s+",
        # GPT-2 and RoBERTa, where a file spells out what byte-level tokenizers have built in
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # CLIP
        r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
        # cl100k and Llama 3; Qwen 2 and 3; Qwen 3.5
        _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,
        _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,
        _ENDINGS
        + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        + _SPACES,
        # Mistral's Tekken; o200k and Llama 4
        _CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES,
        _CASED % (f"{_ENDINGS}?", f"{_ENDINGS}?")
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
        + _SPACES,
        # DeepSeek 3
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    }
)
"""Each takes milliseconds over the largest text that is let in. (SeamlessM4T's `` +▁`` is not here: over
a text of spaces its time grows with the square of their number.)"""


def check(file: Path, trust: bool | None = None) -> None:
    """Refuse a tokenizer file with an expression that is not known, unless it is trusted."""
    if trusted() if trust is None else trust:
        return
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(
            file, f"is not a tokenizer file ({error})", "export the bundle again"
        ) from None
    for pattern in found(content):
        if pattern not in KNOWN:
            raise BundleError(
                f"{file}: {pattern[:150]!r}",
                "is a regular expression of no known tokenizer, and may take too long",
                f"trust the bundle with trust_tokenizer=True, --trust-tokenizer or {TRUST}=1",
            )


def trusted() -> bool:
    """What the environment says, for every process of a service, a cluster or a command."""
    return os.environ.get(TRUST, "").lower() in ("1", "true", "yes")


def found(content: Any) -> Iterator[str]:
    """Every expression of a tokenizer file; vocabularies, which are large and have none, are left out."""
    ahead = [content]
    while ahead:
        value = ahead.pop()
        if isinstance(value, list):
            ahead += value
        elif isinstance(value, dict):
            for key, part in value.items():
                if key == "Regex":
                    yield part if isinstance(part, str) else repr(part)
                elif key not in ("vocab", "merges", "added_tokens"):
                    ahead.append(part)
