from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from xlt_training.encoders import mixtures

_WORDS = st.lists(
    st.sampled_from(["one", "two", "three", "four", "five", "six", "seven"]), min_size=1
)


@given(st.lists(_WORDS.map(" ".join), min_size=1, max_size=20), st.integers(0, 9))
def test_spliced_texts_have_no_words_of_their_own(texts: list[str], seed: int) -> None:
    made = mixtures.spliced(texts, "de", 10, seed)
    long_enough = [text for text in texts if len(text.split()) >= 5]
    assert len(made) == (10 if long_enough else 0)
    known = {word for text in long_enough for word in text.split()}
    for text in made:
        assert set(text.split()) <= known
        assert 3 <= len(text.split()) <= 2 * max(len(t.split()) for t in long_enough)
    assert made == mixtures.spliced(texts, "de", 10, seed)


def test_scripts_without_spaces_are_cut_between_characters() -> None:
    made = mixtures.spliced(["今日は天気がとても良いです"], "ja", 20, seed=0)
    assert len(set(made)) > 5
    assert all(" " not in text and len(text) >= 3 for text in made)


def test_joined_pairs_stay_translations_of_each_other() -> None:
    pairs = [(f"word{i}", f"neno{i}") for i in range(20)]
    made = mixtures.joined(pairs, "sw", 50, seed=0)
    assert len(made) == 50
    assert any(len(english.split()) > 2 for english, _ in made)
    for english, other in made:
        assert [w[4:] for w in english.split()] == [w[4:] for w in other.split()]


def test_joined_pairs_are_not_too_long() -> None:
    pairs = [("x" * 100, "y"), ("z" * 250, "w")]
    made = mixtures.joined(pairs, "sw", 50, seed=0, longest=300)
    assert all(len(english) <= 310 for english, _ in made)
