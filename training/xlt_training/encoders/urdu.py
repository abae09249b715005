"""Urdu out of Hindi, its near twin, of which there is more: Apertium's rules put it across."""

from __future__ import annotations

import re
import subprocess

from xlt_training.encoders import corpus, dictionaries

_DEVANAGARI = re.compile("[\u0900-\u097f]")


def from_hindi(
    hindi: list[corpus.Pair], words: list[tuple[str, str]]
) -> tuple[list[corpus.Pair], list[tuple[str, str]]]:
    try:
        sentences = dictionaries.hindi_to_urdu([pair.other for pair in hindi])
        entries = dictionaries.hindi_to_urdu([other for _, other in words])
    except (OSError, subprocess.CalledProcessError):
        print("dictionaries: apertium hin-urd does not run, going on without it", flush=True)
        return [], []
    if len(sentences) != len(hindi) or len(entries) != len(words):
        print("dictionaries: apertium lost count of the lines, going on without it", flush=True)
        return [], []
    pairs = [
        corpus.Pair("ur", pair.english, text)
        for pair, text in zip(hindi, sentences, strict=True)
        if len(_DEVANAGARI.findall(text)) < 0.2 * len(text)
    ]
    kept = [
        (english, text)
        for (english, _), text in zip(words, entries, strict=True)
        if text and not _DEVANAGARI.search(text)
    ]
    return pairs, kept
