"""Tokenizers of which only the SentencePiece model is published: what transformers makes of it, mended.

transformers leaves the model's own normalisation out for DeBERTa-v2, where "①" and full-width letters
then become unknown. What comes out is compared with the SentencePiece library, sentence by sentence.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, normalizers
from transformers import PreTrainedTokenizerFast

from xlt_serve.errors import DataError
from xlt_training.data.sentences import sentences

FILES = ("sentencepiece.bpe.model", "spm.model", "spiece.model", "tokenizer.model")


def mended(tokenizer: PreTrainedTokenizerFast, file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer that transformers made of ``file``, with its normalisation, or a refusal."""
    spec = sentencepiece_model_pb2.ModelProto()
    try:
        spec.ParseFromString(file.read_bytes())
    except Exception as error:  # protobuf's own, which has no public base class
        raise DataError(file, f"is no SentencePiece model ({error})", "fetch it again") from None
    backend: Any = tokenizer.backend_tokenizer
    if spec.normalizer_spec.precompiled_charsmap and "Precompiled" not in repr(backend.normalizer):
        lower = [normalizers.Lowercase()] if getattr(tokenizer, "do_lower_case", False) else []
        backend.normalizer = normalizers.Sequence(
            [
                *lower,
                normalizers.Precompiled(spec.normalizer_spec.precompiled_charsmap),
                normalizers.Replace(Regex(" {2,}"), " "),
                normalizers.Strip(),
            ]
        )
    texts = [text for of_language in sentences().values() for text in of_language]
    refuse_differences(tokenizer, file, [*texts, "Ａ①ﬁ  x\u3000y"])
    return tokenizer


def refuse_differences(
    tokenizer: PreTrainedTokenizerFast, file: Path, texts: Iterable[str]
) -> None:
    """Every text must be cut as the SentencePiece library cuts it; where two ways are as likely, as for
    three quotes in a row, into the same pieces."""
    original = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for text in texts:
        expected, given = pieces(original, tokenizer, text)
        if sorted(expected) != sorted(given):
            raise DataError(
                file,
                f"can't be converted: {text[:60]!r} becomes {' '.join(given)[:80]!r} instead of"
                f" {' '.join(expected)[:80]!r}",
                "put a tokenizer.json beside it that its authors have checked",
            )


def pieces(original: Any, tokenizer: PreTrainedTokenizerFast, text: str) -> tuple[list[str], ...]:
    """What both make of a text; unknown ones by one name. What the family does to a text before its
    model reads it, as ALBERT's lower case, both see."""
    backend: Any = tokenizer.backend_tokenizer
    before = backend.normalizer.normalize_str(text) if backend.normalizer else text
    expected = [
        "?" if number == original.unk_id() else str(original.id_to_piece(number))
        for number in original.encode(before)
    ]
    given = [
        "?" if number == tokenizer.unk_token_id else str(backend.id_to_token(number))
        for number in backend.encode(text, add_special_tokens=False).ids
    ]
    return expected, given
