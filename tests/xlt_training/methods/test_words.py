from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from xlt_training.data import TaskConfig
from xlt_training.loop.method import Context
from xlt_training.loop.types import Example
from xlt_training.loop.words import load_lexicons, load_synonyms, redraw, refuse_unspaced, rewrite
from xlt_training.methods.code_switch import switch
from xlt_training.methods.synonyms import Synonyms
from xlt_training.methods.translate_train import TranslateTrain
from xlt_training.methods.word_swap import WordSwap, swap_words

from tests.xlt_training.contexts import context_of
from xlt_serve.errors import DataError, UsageError


def test_case_and_punctuation_are_kept() -> None:
    upper = rewrite('The GOAL, "Goal" (goal)... x', lambda w: "aim" if w == "goal" else w)
    assert upper == 'The AIM, "Aim" (aim)... x'
    assert rewrite("İstanbul’da A", lambda w: w) == "İstanbul’da A"
    assert rewrite("«की», क!", lambda w: "x" if w == "की" else w) == "«x», क!"


def test_redrawing_is_uniform_over_the_word_and_its_neighbours() -> None:
    table = {"goal": ["aim", "target", "end"]}
    generator = random.Random(0)
    counts = Counter(redraw("goal", table, generator) for _ in range(8000))
    assert set(counts) == {"goal", "aim", "target", "end"}
    assert all(count / 8000 == pytest.approx(0.25, abs=0.02) for count in counts.values())
    assert redraw("unknown words", table, generator) == "unknown words"


def test_synonyms_add_copies_with_both_sides_of_a_pair_redrawn(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps({"goal": ["aim", "end", "mark", "spot"]}))
    context = Context("en", 0, tmp_path / "lexicons")
    example = Example("goal", "a", "en", pair="goal")
    made = list(Synonyms(copies=200, table=str(file)).augment([example], context))
    assert made[0] == example
    assert len(made) == 201
    both = Counter((e.text, e.pair) for e in made)
    assert len(both) == 25  # independent: all combinations appear
    assert all(e.label == "a" for e in made)
    alone = Synonyms(copies=3, table=str(file), keep_original=False).augment([example], context)
    assert len(list(alone)) == 3
    again = list(Synonyms(copies=200, table=str(file)).augment([example], context))
    assert again == made


def test_a_share_of_the_dictionary_is_seeded(toy_data: Path) -> None:
    context = context_of(toy_data, seed=1)
    whole = load_synonyms("", context)
    half = load_synonyms("", context, 0.5)
    assert len(half) == round(len(whole) / 2)
    assert half == load_synonyms("", context, 0.5)
    assert set(half) < set(whole)
    with pytest.raises(UsageError, match=r"must be in \(0, 1\]"):
        load_synonyms("", context, 0)
    with pytest.raises(DataError, match="is not there"):
        load_synonyms("none.json", context)


def test_swapping_keeps_the_words_and_follows_p() -> None:
    text = "a b c d e f g h"
    generator = random.Random(0)
    assert swap_words(text, 0.0, generator) == text
    assert swap_words(text, 1.0, generator) == "b a d c f e h g"
    assert sorted(swap_words(text, 0.3, generator).split()) == text.split()
    two = [swap_words("a b", 0.1, generator) for _ in range(10_000)]
    assert two.count("b a") / 10_000 == pytest.approx(0.1, abs=0.01)
    made = list(WordSwap(copies=2).augment([Example(text, "x", "en")], Context("en", 0)))
    assert len(made) == 3


def test_switching_respects_p_and_the_dictionaries(toy_data: Path) -> None:
    lexicons = load_lexicons(toy_data / "lexicons", "en", [])
    assert set(lexicons) == {"de", "fr"}
    assert "town" not in lexicons["de"]  # a translation of two words would break the alignment
    generator = random.Random(0)
    words = Counter(switch("Goal", lexicons, 0.5, generator) for _ in range(8000))
    assert words["Goal"] / 8000 == pytest.approx(0.5, abs=0.02)
    assert words["Goalde"] / 8000 == pytest.approx(0.25, abs=0.02)
    assert words["Goalfr"] / 8000 == pytest.approx(0.25, abs=0.02)
    text = "the team was in our town"
    assert len(switch(text, lexicons, 1.0, generator).split()) == 6
    assert switch(text, lexicons, 1.0, generator).split()[0] == "the"
    with pytest.raises(DataError, match=r"en-xx\.tsv: is not there"):
        load_lexicons(toy_data / "lexicons", "en", ["xx"])


def test_languages_without_spaces_are_refused() -> None:
    with pytest.raises(UsageError, match="synonyms with texts in zh: works on words"):
        refuse_unspaced("synonyms", "zh")


def test_examples_in_other_languages_are_left_alone(toy_data: Path) -> None:
    context = context_of(toy_data, seed=1)
    german = Example("die goal", "a", "de")
    assert list(Synonyms(copies=5).augment([german], context)) == [german]
    assert list(WordSwap(copies=5, p=1.0).augment([german], context)) == [german]
    with pytest.raises(DataError, match=r"de-synonyms\.json: is not there"):
        load_synonyms("", context_of(toy_data, "de", seed=1))


def test_translate_train_uses_source_labels_and_ids(toy_data: Path) -> None:
    from xlt_training.data import load_split

    source = load_split("sib200", toy_data, "train", "en")
    context = context_of(toy_data)
    made = list(TranslateTrain().augment(source, context))
    german = [e for e in made if e.language == "de"]
    assert made[: len(source)] == source
    assert len(german) == len(source) - 20
    by_id = {e.id: e for e in source}
    for example in german:
        assert example.label == by_id[example.id].label
        assert example.text == by_id[example.id].text.upper()
        assert example.source == (by_id[example.id].text,)
        assert example.round_trip == (by_id[example.id].text.title(),)
    # A copy made before, or an example in another language, is not taken for the original.
    others = [*source, *(e.with_texts(["copy"]) for e in source[:3])]
    again = [e for e in TranslateTrain().augment(others, context) if e.language == "de"]
    assert again == german
    with pytest.raises(DataError, match="has no translations"):
        list(TranslateTrain().augment(source, context_of(toy_data, task="xsid")))


def test_word_lists_are_found_in_folders_by_patterns_and_by_tables(tmp_path: Path) -> None:
    for language, word in (("de", "Tor"), ("fr", "but")):
        (tmp_path / f"en-{language}.tsv").write_text(f"goal\t{word}\nGoal\ttwo words\n\n")
    (tmp_path / "en-synonyms.tsv").write_text("goal\taim\n")  # no language of this name
    every = {"de": {"goal": ["Tor"]}, "fr": {"goal": ["but"]}}
    assert load_lexicons(tmp_path, "en", []) == every
    assert load_lexicons(f"{tmp_path}/en-{{language}}.tsv", "en", ["de", "fr"]) == every
    table = {"de": str(tmp_path / "en-de.tsv")}
    assert load_lexicons(table, "en", []) == {"de": every["de"]}
    (tmp_path / "en-it.tsv").write_text("goal,rete\n")
    for place, wanted, words in (
        (table, ["fr"], "is not there in 'fr'; there are: de; name languages"),
        (tmp_path, ["it"], "en-it.tsv: has no line of two words apart by a tab"),
        (tmp_path / "no", [], "no: has no dictionary en-xx.tsv; name their folder"),
    ):
        with pytest.raises(DataError) as told:
            load_lexicons(place, "en", wanted)
        assert words in str(told.value)
        assert str(told.value).startswith("task.lexicons: ")


def test_the_table_of_synonyms_is_that_of_the_method_of_the_task_or_of_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "en-synonyms.json").write_text('{"goal": ["aim"]}')
    for name in ("task", "method"):
        (tmp_path / f"{name}.tsv").write_text(f"word\tsynonyms\ngoal\t{name}|two words\n")
    own, given = Context("en", 0, tmp_path), str(tmp_path / "task.tsv")
    named = Context("en", 0, {"de": "en-de.tsv"}, synonyms=given)
    assert load_synonyms("", own) == {"goal": ["aim"]}
    assert load_synonyms("", named) == {"goal": ["task"]}
    assert load_synonyms(str(tmp_path / "method.tsv"), named) == {"goal": ["method"]}
    for context in (Context("en", 0, {"de": "x"}), Context("en", 0, "hub/lexicons")):
        with pytest.raises(DataError, match=r"task\.synonyms.*: is not there; name the table of"):
            load_synonyms("", context)


def test_a_task_of_the_hub_takes_words_by_path_and_names_what_is_not_there(tmp_path: Path) -> None:
    words = tmp_path / "words.tsv"
    words.write_text("goal\taim\n")
    made = TaskConfig("sib200", "hub", lexicons={"de": str(words)}, synonyms=str(words))
    assert made.problems() == []
    assert made.lexicon_place == {"de": str(words)}
    wrong = TaskConfig("sib200", "hub", lexicons={"de": "no.tsv"}, synonyms="no.json")
    assert wrong.problems() == [
        "task.synonyms = 'no.json' is not there",
        "task.lexicons.de = 'no.tsv' is not there",
    ]
    assert TaskConfig("sib200", "hub", lexicons="no").problems() == [
        "task.lexicons = 'no' is not there"
    ]
