"""Word lists learnt from pairs, and read from CLDR's names."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from xlt_training.encoders import glosses, induced, names, teacher
from xlt_training.encoders.corpus import Pair

WORDS = {"dog": "Hund", "cat": "Katze", "house": "Haus", "red": "rot", "big": "groß"}


def test_model_one_finds_the_words_of_a_known_dictionary() -> None:
    """Every pair of words in both orders: only the true alignment explains all of them."""
    pairs = [
        Pair("de", " ".join(chosen), " ".join(WORDS[word] for word in reversed(chosen)))
        for chosen in itertools.permutations(WORDS, 2)
    ]
    found = dict(induced.word_pairs(pairs, least=0.5))
    assert found == {english: other.lower() for english, other in WORDS.items()}


def test_model_one_is_a_distribution_and_raises_the_likelihood() -> None:
    bitext = [(["a", "b"], ["x", "y"]), (["a"], ["x"]), (["b", "c"], ["y", "z", "x"])]

    def likelihood(table: induced.Table) -> float:
        return sum(
            np.log(sum(table[word][target] for word in left) / len(left))
            for left, right in bitext
            for target in right
        )

    tables = [induced.model_one(bitext, rounds) for rounds in (0, 1, 3, 10)]
    for table in tables:
        for row in table.values():
            assert sum(row.values()) == pytest.approx(1)
    values = [likelihood(table) for table in tables]
    assert values == sorted(values)


def test_compounds_are_found_as_one_word() -> None:
    pairs = [
        Pair("vi", "the police came", "cảnh sát đã đến"),
        Pair("vi", "police", "cảnh sát"),
        Pair("vi", "the police", "cảnh sát"),
        Pair("vi", "she came", "cô đã đến"),
    ]
    assert ("police", "cảnh sát") in induced.word_pairs(pairs, longest=2)
    assert induced.tokens("cảnh sát đến", 2) == ["cảnh", "sát", "đến", "cảnh sát", "sát đến"]
    assert induced.tokens("हिन्दी में 3") == ["हिन्दी", "में"]


def test_names_become_pairs_and_words(tmp_path: Path) -> None:
    stored = {
        "en": {"picture 🐶": "dog face, dog, pet", "territories FR": "France", "picture ©": "(c)"},
        "sw": {"picture 🐶": "uso wa mbwa, mbwa", "territories FR": "Ufaransa", "picture ©": "(c)"},
    }
    (tmp_path / f"names-{names.VERSION}.json").write_text(json.dumps(stored))
    found = names.fetch(tmp_path, ["sw"])
    assert Pair("sw", "dog face, dog, pet", "uso wa mbwa, mbwa") in names.pairs(found, "sw")
    assert names.words(found, "sw") == [("dog face", "uso wa mbwa"), ("France", "Ufaransa")]
    assert names.pairs(found, "vi") == []


def test_texts_added_at_the_end_cost_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[list[str]] = []

    class Counting:
        def __init__(self, path: Path) -> None: ...

        def encode(self, texts: list[str]) -> np.ndarray:
            encoded.append(list(texts))
            return np.array([[len(text)] * teacher.WIDTH for text in texts], dtype=np.float32)

    monkeypatch.setattr(teacher, "Teacher", Counting)
    monkeypatch.setattr(teacher, "fetch", lambda folder: folder)
    first = teacher.encode_cached(["a", "bb", "ccc"], tmp_path, "x", block=2)
    again = teacher.encode_cached(["a", "bb", "ccc", "dddd"], tmp_path, "x", block=2)
    assert encoded == [["a", "bb"], ["ccc"], ["ccc", "dddd"]]
    np.testing.assert_array_equal(again[:3], first)
    assert again[:, 0].tolist() == [1, 2, 3, 4]


def test_wordnets_definitions_and_examples_become_sentences(tmp_path: Path) -> None:
    line = (
        "00021265 05 n 02 food 0 solid_food(a) 1 001 @ 00020827 n 0000 | any substance that can "
        'be eaten; "food was scarce in that winter"; "too short"'
    )
    assert list(glosses.texts(line)) == [
        "food, solid food: any substance that can be eaten",
        "food was scarce in that winter",
    ]
    assert list(glosses.texts("  1 This software and database is | being provided")) == []
    assert list(glosses.texts("")) == []
    for name in glosses.FILES:
        (tmp_path / name).write_text(f"  1 licence\n{line}\n", encoding="utf-8")
    assert glosses.fetch(tmp_path) == list(glosses.texts(line))  # each text once
