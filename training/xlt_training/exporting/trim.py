"""A smaller vocabulary for a model that will only read some languages.

A piece goes if it holds a letter of a script that none of the languages is written in. Text in
their scripts can't contain such a piece, so it is cut into exactly the same pieces as before.
Digits, punctuation, symbols and the single letters of alphabets always stay: a quoted name in
another alphabet is spelt out, while Chinese or Japanese becomes unknown where it is not asked for.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from xlt_serve.errors import ExportRefused, UsageError
from xlt_training.loop.network import Classifier

_CYRILLIC, _ARABIC, _DEVANAGARI = ("CYRILLIC",), ("ARABIC",), ("DEVANAGARI",)
_LATIN = """af az ca cs cy da de en es et eu fi fr ga gl hr hu id is it lt lv ms mt nl no pl pt ro sk
sl so sq sv sw tl tr uz vi xh yo zu"""
# First words of Unicode's names of letters. Latin is always kept: names and terms are everywhere.
SCRIPTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["ar", "fa", "ur", "ps", "ckb", "sd", "ug"], _ARABIC),
    **dict.fromkeys(["bg", "ru", "uk", "be", "mk", "sr", "kk", "ky", "mn", "tg"], _CYRILLIC),
    **dict.fromkeys(["hi", "mr", "ne", "sa"], _DEVANAGARI),
    **dict.fromkeys(_LATIN.split(), ()),
    "am": ("ETHIOPIC",),
    "bn": ("BENGALI",),
    "el": ("GREEK",),
    "gu": ("GUJARATI",),
    "he": ("HEBREW",),
    "hy": ("ARMENIAN",),
    "ja": ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK", "IDEOGRAPHIC"),
    "ka": ("GEORGIAN",),
    "km": ("KHMER",),
    "kn": ("KANNADA",),
    "ko": ("HANGUL", "CJK"),
    "lo": ("LAO",),
    "ml": ("MALAYALAM",),
    "my": ("MYANMAR",),
    "pa": ("GURMUKHI",),
    "si": ("SINHALA",),
    "ta": ("TAMIL",),
    "te": ("TELUGU",),
    "th": ("THAI",),
    "zh": ("CJK", "IDEOGRAPHIC", "BOPOMOFO"),
}

MANY = {"CJK", "HANGUL", "HIRAGANA", "KATAKANA", "YI", "ETHIOPIC"}  # scripts with too many letters


def trim(model: Classifier, languages: Sequence[str]) -> dict[str, int]:
    """Cut tokenizer and embedding table down in place; says how many pieces there were and are."""
    if unknown := sorted(set(languages) - set(SCRIPTS)):
        raise UsageError(
            f"--trim-vocab {','.join(unknown)}", f"known languages are {', '.join(sorted(SCRIPTS))}"
        )
    described = json.loads(model.tokenizer.backend_tokenizer.to_str())
    kept = kept_ids(described, scripts_of(languages))
    before, pad = model.hf.config.vocab_size, model.tokenizer.pad_token_id
    if kept.index(pad) != pad:  # XLM-R counts positions from it
        raise ExportRefused(
            f"pad id {pad}", "would move", "use a tokenizer that has it in front of all pieces"
        )
    model.tokenizer = with_pieces(model.tokenizer, renumbered(described, kept))
    model.encoding.tokenizer = model.tokenizer
    _cut_table(model, kept)
    return {"before": before, "after": len(kept)}


def scripts_of(languages: Sequence[str]) -> set[str]:
    return {"LATIN", *(script for language in languages for script in SCRIPTS[language])}


def is_written_in(piece: str, scripts: set[str]) -> bool:
    """Whether every letter of ``piece`` belongs to one of ``scripts``."""
    return all(
        unicodedata.name(character, "").split(" ")[0] in scripts
        for character in unicodedata.normalize("NFKC", piece)
        if unicodedata.category(character)[0] in "LM" and not _is_shared(character)
    )


def is_letter(piece: str) -> bool:
    """A single letter of an alphabet, also behind a space (▁) or inside a word (##)."""
    letter = piece.removeprefix("▁").removeprefix("##")
    return len(letter) == 1 and unicodedata.name(letter, "").split(" ")[0] not in MANY


def _is_shared(character: str) -> bool:
    """Marks and modifiers that belong to no script, such as combining accents."""
    name = unicodedata.name(character, "")
    return name.startswith(("COMBINING", "MODIFIER", "VARIATION", "FEMININE", "MASCULINE", "MICRO"))


def kept_ids(described: dict[str, Any], scripts: set[str]) -> list[int]:
    """Old ids of the pieces that stay, ascending; special and added tokens always do."""
    kind = described["model"].get("type")
    if kind == "Unigram":
        pieces = {index: piece for index, (piece, _) in enumerate(described["model"]["vocab"])}
    elif kind == "WordPiece":
        pieces = {index: piece for piece, index in described["model"]["vocab"].items()}
    else:
        raise ExportRefused(
            f"a {kind} tokenizer",
            "can't be trimmed: its merges build long pieces from short ones",
            "export without --trim-vocab",
        )
    added = {token["id"]: token["content"] for token in described["added_tokens"]}
    return sorted(
        index
        for index, piece in (pieces | added).items()
        if index in added or is_written_in(piece, scripts) or is_letter(piece)
    )


def renumbered(described: dict[str, Any], kept: Sequence[int]) -> dict[str, Any]:
    """tokenizer.json with the kept pieces alone, numbered from 0 in their old order."""
    new = {old: number for number, old in enumerate(kept)}
    out: dict[str, Any] = json.loads(json.dumps(described))
    vocabulary = out["model"]["vocab"]
    if out["model"]["type"] == "Unigram":
        out["model"]["vocab"] = [row for old, row in enumerate(vocabulary) if old in new]
        out["model"]["unk_id"] = new[out["model"]["unk_id"]]
    else:
        out["model"]["vocab"] = {p: new[old] for p, old in vocabulary.items() if old in new}
    for token in out["added_tokens"]:
        token["id"] = new[token["id"]]
    for token in (out.get("post_processor") or {}).get("special_tokens", {}).values():
        token["ids"] = [new[old] for old in token["ids"]]
    for side in ("sep", "cls"):  # the form of BERT's and RoBERTa's own post-processors
        pair = (out.get("post_processor") or {}).get(side)
        if isinstance(pair, list):
            pair[1] = new[pair[1]]
    return out


def with_pieces(
    tokenizer: PreTrainedTokenizerFast, described: dict[str, Any]
) -> PreTrainedTokenizerFast:
    """The same tokenizer over another vocabulary."""
    named = {
        f"{name}_token": getattr(tokenizer, f"{name}_token")
        for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
        if getattr(tokenizer, f"{name}_token", None) is not None
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)),
        model_max_length=tokenizer.model_max_length,
        **named,
    )


def _cut_table(model: Classifier, kept: Sequence[int]) -> None:
    """The embedding rows of the kept pieces; ids in the config follow."""
    old: Any = model.base.get_input_embeddings()
    table = nn.Embedding(len(kept), old.embedding_dim, padding_idx=old.padding_idx)
    with torch.no_grad():
        table.weight.copy_(old.weight[torch.tensor(kept)])
    model.base.set_input_embeddings(table.to(model.device).eval())
    for config in (model.hf.config, model.base.config):
        config.vocab_size = len(kept)
        for name in ("bos", "eos"):
            if getattr(config, f"{name}_token_id", None) is not None:
                setattr(config, f"{name}_token_id", getattr(model.tokenizer, f"{name}_token_id"))
