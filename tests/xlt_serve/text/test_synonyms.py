"""Synonyms at prediction: tables, groups, and certificates against enumeration of all draws."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xlt_training.exporting import checkpoint as export
from xlt_training.loop.method import Context
from xlt_training.loop.words import load_synonyms

from xlt_serve import load
from xlt_serve.classifier import Classifier
from xlt_serve.errors import DataError, UsageError
from xlt_serve.modes import draws
from xlt_serve.modes.smoothed import Smoothing
from xlt_serve.runtime.steps import RowOutputs, RunRequest, drive
from xlt_serve.smoothing import certify
from xlt_serve.smoothing.noise import stream_key
from xlt_serve.smoothing.substitution import PER_TOKEN, RewrittenText, Sentence
from xlt_serve.text import synonyms
from xlt_serve.text.synonyms import Table, partition, table
from xlt_serve.text.tokens import Piece
from xlt_serve.text.words import in_case
from xlt_serve.types import Item

# Letters whose case is not simple: ß (two in upper case), ı and İ (lost or gained a dot), ς and σ,
# a digit and a letter without case.
ALPHABET = "abßıiσςé3अ"
some_words = st.text(ALPHABET, min_size=1, max_size=3)
some_lists = st.dictionaries(some_words, st.lists(some_words, max_size=4), max_size=12)


def made(lists: dict[str, list[str]]) -> Table:
    return table(lists, "en", "test")


# Groups


@given(some_lists, st.integers(0, 3))
def test_groups_are_disjoint_cliques(lists: dict[str, list[str]], seed: int) -> None:
    groups = partition(lists, seed)
    members = [word for group in groups for word in group]
    assert len(members) == len(set(members))
    for group in groups:
        assert len(group) > 1
        for one, other in itertools.combinations(group, 2):
            assert other in lists.get(one, ()) or one in lists.get(other, ())
    assert groups == partition(dict(reversed(lists.items())), seed)


@given(st.sets(some_words, min_size=2, max_size=12), st.data())
def test_disjoint_cliques_are_given_back(words: set[str], data: st.DataObject) -> None:
    number = {word: data.draw(st.integers(0, 3)) for word in sorted(words)}
    lists = {w: [o for o in words if o != w and number[o] == number[w]] for w in words}
    expected = {frozenset(near) | {word} for word, near in lists.items() if near}
    assert {frozenset(group) for group in partition(lists)} == expected


def test_the_partition_is_as_documented() -> None:
    lists = {"b": ["a", "c"], "c": ["a", "b", "d"], "d": ["e"], "z": ["d"]}
    # Fewest neighbours first: e (d) or z (d) takes d; then a, b or c, all three neighbours.
    groups = {frozenset(group) for group in partition(lists)}
    assert frozenset("abc") in groups
    assert groups - {frozenset("abc")} in ({frozenset("de")}, {frozenset("dz")})
    assert {partition(lists, seed) for seed in range(20)} != {partition(lists)}


# What a word may be drawn as


@given(some_lists, st.sampled_from(["lower", "title", "upper"]), st.data())
def test_in_groups_all_that_can_be_drawn_draws_the_same(
    lists: dict[str, list[str]], case: Any, data: st.DataObject
) -> None:
    """The heart of the certificate, for whatever stands in a text: also İ, ß, iPhone and A."""
    if not any(lists.values()):
        return
    try:
        found = made(lists)
    except DataError:
        return
    word = in_case(data.draw(st.sampled_from(sorted(lists))), case)
    choices = found.choices(word, "groups")
    for other in choices:
        assert sorted(found.choices(other, "groups")) == sorted(choices)
    if choices:
        assert word.casefold() in {other.casefold() for other in choices}
        assert len(set(choices)) == len(choices) > 1


def test_case_and_punctuation_are_kept_and_spaces_are_not() -> None:
    found = made({"goal": ["aim"], "iphone": ["phone"], "i": ["we"]})
    sentence = Sentence("(Goal)  GOAL,\n goal’s iPhone… I", found, "groups")
    drawn = {sentence.drawn(n) for n in itertools.product(*map(range, sentence.sizes))}
    assert "(Aim) AIM, goal’s phone… We" in drawn
    assert "(Goal) GOAL, goal’s iphone… I" in drawn
    assert len(drawn) == 16


def test_a_word_that_its_case_would_disguise_is_left_alone() -> None:
    found = made({"ısı": ["sıcak"], "straße": ["weg"], "ab": ["x"]})
    assert set(found.choices("ısı", "groups")) == {"ısı", "sıcak"}
    assert found.choices("ISI", "groups") == ()  # "isi" to a reader of lower case
    assert set(found.choices("STRASSE", "groups")) == {"STRASSE", "WEG"}
    assert set(found.choices("Ab", "groups")) == {"Ab", "X"}
    assert found.choices("AB", "groups") == ()  # "X" could be a capital alone


def exact(text: RewrittenText, verdict: Any) -> Counter[Any]:
    """Every draw with its probability, by verdict."""
    out: Counter[Any] = Counter()
    [sentence] = text.sentences
    combinations = list(itertools.product(*map(range, sentence.sizes)))
    for numbers in combinations:
        out[verdict(sentence.drawn(numbers))] += Fraction(1, len(combinations))
    return out


def rewritten(item: Item, found: Table, draws: Any = "groups", seed: int = 0) -> RewrittenText:
    return RewrittenText(item, stream_key(seed, item), found, draws, 1, lambda items: [])


def test_draws_are_uniform_and_addressed() -> None:
    found = made({"goal": ["aim", "end"], "aim": ["end"], "big": ["large"]})
    text = rewritten("Big goal!", found)
    counts = Counter(text.drawn(number) for number in range(6000))
    assert set(counts) == {f"{a} {b}!" for a in ("Big", "Large") for b in ("goal", "aim", "end")}
    assert all(abs(count / 6000 - 1 / 6) < 0.02 for count in counts.values())
    assert text.drawn(5999) == rewritten("Big goal!", found).drawn(5999)
    first = [text.drawn(n) for n in range(20)]
    assert first != [rewritten("Big goal!", found, seed=1).drawn(n) for n in range(20)]
    pair = rewritten(("big", "goal goal"), found)
    assert len({pair.drawn(number) for number in range(800)}) == 18


def test_in_groups_no_substitution_changes_the_distribution() -> None:
    found = made({"goal": ["aim", "end"], "aim": ["end"], "big": ["large"]})
    choices = [("Big", "Large"), ("goal,", "aim,", "end,"), ("GOAL", "AIM", "END")]
    expected = exact(rewritten("Big goal, GOAL x", found), str)
    for words in itertools.product(*choices):
        text = rewritten(" ".join((*words, "x")), found)
        assert exact(text, str) == expected
        assert text.overlaps == [1.0] * 3
        assert text.threshold == 0.5


def test_overlaps_of_raw_lists_bound_the_distance_of_draws() -> None:
    lists = {"a": ["b", "c", "d"], "b": ["a", "c", "d"], "c": ["a", "b", "d"], "d": ["a", "b"]}
    found = made(lists)
    text = rewritten("a b", found, "neighbours")
    own = exact(text, str)
    assert all(own[key] == Fraction(1, 16) for key in own)
    for other in ("c b", "a d", "d b", "d d", "b a"):
        theirs = exact(rewritten(other, found, "neighbours"), str)
        distance = sum(abs(own[k] - theirs[k]) for k in own | theirs) / 2
        changed = sum(x != y for x, y in zip(other.split(), ["a", "b"], strict=True))
        assert distance <= Fraction(certify.words_threshold(text.overlaps, changed)) - Fraction(
            1, 2
        )
    assert text.overlaps == [0.75, 0.75]


# Files


def test_files_are_read_in_both_forms_and_written_in_one(tmp_path: Path) -> None:
    plain, grouped = tmp_path / "plain.json", tmp_path / "grouped.json"
    plain.write_text(json.dumps({"Big": ["large", "BIG", "very big", "large"], "odd": []}))
    grouped.write_text(json.dumps({"groups": [["Big", "large"], ["alone"]]}))
    one = synonyms.read(plain, "en")
    assert one.neighbours == {"big": ["large"]}
    assert one.groups == (("large", "big"),) or one.groups == (("big", "large"),)
    assert synonyms.read(grouped, "en").groups == (("big", "large"),)
    written = tmp_path / "written.json"
    written.write_text(one.to_json(), encoding="utf-8")
    assert synonyms.read(written, "en").sha256 == one.sha256
    # Words of a table that are called as its keys are no trouble.
    assert table({"groups": ["teams"], "neighbours": ["fellows"]}, "en", "").neighbours == {
        "groups": ["teams"],
        "neighbours": ["fellows"],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "is not a JSON object"),
        ("{", "is not JSON in UTF-8"),
        ('{"a": "b"}', "'a': must have a list of words"),
        ('{"a": []}', "has no word with a neighbour"),
        ('{"groups": [["a", "b"], ["B", "c"]]}', "'B': stands in the groups twice"),
        ('{"groups": [["a", "two words"]]}', "'two words': a group is a list of single words"),
        ('{"groups": [["a", "b"]], "other": {}}', r"unknown keys \['other'\]"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "table.json"
    file.write_text(content)
    with pytest.raises(DataError, match=message):
        synonyms.read(file, "en")
    with pytest.raises(UsageError, match=r"for zh: works on words.*without spaces"):
        synonyms.read(file, "zh")


def test_tables_are_named_by_language() -> None:
    assert synonyms.files(["en=a=b.json", "de=c"]) == {"en": Path("a=b.json"), "de": Path("c")}
    for wrong in (["en"], ["=file"], ["en="], ["en=a", "en=b"]):
        with pytest.raises(UsageError, match="--synonyms"):
            synonyms.files(wrong)
    with pytest.raises(DataError, match="is not there"):
        synonyms.read(Path("nowhere.json"), "en")


# A bundle

LISTS = {
    "goal": ["match", "score"],
    "match": ["score"],
    "team": ["player", "ball"],
    "player": ["ball"],
    "bread": ["soup"],
    "rain": ["goal"],
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables") / "en.json"
    out.write_text(json.dumps(LISTS))
    return out


@pytest.fixture(scope="module")
def classifier(bundle: Path, file: Path) -> Classifier:
    return load(bundle, synonyms={"en": file})


def ask(classifier: Classifier, texts: list[Any], **asked: Any) -> list[Any]:
    language = asked.pop("language", "en")
    smoothing = Smoothing(**({"noise": "synonym", "seed": 3} | asked))
    return classifier.predict(texts, mode="smoothed", language=language, smoothing=smoothing)


TEXTS = ["the Goal was in our match with a Team", "bread and soup today", "snow", "rain goal"]


def test_labels_and_bounds_against_all_draws(classifier: Classifier) -> None:
    found = classifier.context.tables.of("en")
    assert found is not None
    answers = ask(classifier, TEXTS, words=1, samples=300)
    assert sum(answer.label is not None for answer in answers) >= 2
    for text, answer in zip(TEXTS, answers, strict=True):
        draws = rewritten(text, found)
        truth = exact(draws, lambda drawn: classifier.predict([drawn])[0].label)
        votes = answer.smoothed
        if answer.label is None:  # its draws disagree
            assert (votes.draws, votes.certificate) == (300, None)
            assert votes.votes == pytest.approx(
                {label: 300 * float(truth[label]) for label in votes.votes}, abs=40
            )
            continue
        assert answer.label == truth.most_common(1)[0][0]
        assert votes.lower_bound <= truth[answer.label]
        assert sum(votes.votes.values()) == votes.draws
        assert "trained without synonyms" in votes.warning
        certificate = answer.to_dict()["certificate"]
        if not draws.overlaps or votes.lower_bound <= 0.5:  # nothing to change, or a plurality
            assert certificate is None
            continue
        assert certificate == {
            "norm": "words",
            "words": len(draws.overlaps),
            "of": len(draws.overlaps),
            "at": "words",
            "noise": "synonym",
            "synonyms": "groups",
            "alpha": 0.001,
        }


def test_draws_are_the_same_in_any_company_and_run_once(classifier: Classifier) -> None:
    together = ask(classifier, [*TEXTS, "", TEXTS[0]], samples=60)
    assert together[4].error.code == "empty"
    for text, answer in zip([*TEXTS, "", TEXTS[0]], together, strict=True):
        assert ask(classifier, [text], samples=60) == [answer]
    asked = []
    runner = classifier.runners.of("plain")
    ask(classifier, ["snow"], samples=100, words=1, alpha=1e-9)
    text = RewrittenText("rain goal", 1, made(LISTS), "groups", None, lambda items: [
        asked.append(item) or Piece([1], [0]) for item in items
    ])  # fmt: skip
    for start in range(0, 100, 10):
        rows = text.rows(range(start, start + 10))
        assert len(text.votes(np.eye(3)[np.zeros(len(rows), dtype=int)])) == 10
    assert len(asked) == len(set(asked)) <= 6
    assert runner is classifier.runners.of("plain")


LONG_WORD = "the goal " * 5 + "x" * 99_000 + " match team" * 5


def test_a_draw_is_tokenised_as_far_as_it_may_be_read(classifier: Classifier) -> None:
    """Not all of a word of 99 kB, again and again."""
    found, lengths = made(LISTS), list[int]()
    limit = classifier.context.encoder.max_length

    def cut(items: Any) -> list[Piece]:
        lengths.extend(len(item) for item in items)
        return [Piece([1], [0]) for _ in items]

    text = RewrittenText(LONG_WORD, 1, found, "groups", 1, cut, limit)
    text.rows(range(100))
    assert max(lengths) == text.size == PER_TOKEN * limit
    short = RewrittenText(
        "(Goal) rain goal", 1, made({"goal": ["end", "objective"]}), "groups", 1, cut, limit
    )
    assert short.size == len("(Objective) rain objective ")


def test_what_a_draw_loses_would_not_have_been_read(classifier: Classifier) -> None:
    encoder, found = classifier.context.encoder, made(LISTS)
    for text in ("The goal was in our match, with a team; " * 300, "(Internationalisation) " * 500):
        limit = encoder.max_length
        whole, cut = Sentence(text, found, "groups"), Sentence(text, found, "groups", limit)
        written = whole.drawn(whole.own), cut.drawn(cut.own)
        assert len(written[1]) < len(written[0])
        [[one], [other]] = [each.pieces for each in encoder.encode(list(written))]
        assert one == other


def test_a_step_of_a_vote_tokenises_so_much(classifier: Classifier) -> None:
    """Others wait for it."""
    limit, found = classifier.context.encoder.max_length, made(LISTS)
    drawn = list[int]()

    def cut(items: Any) -> list[Piece]:
        drawn.extend(len(item) for item in items)
        return [Piece([1], [0]) for _ in items]

    voters = [
        RewrittenText(f"{LONG_WORD} {number}", number, found, "groups", 1, cut, limit)
        for number in range(3)
    ]
    steps = list[int]()

    def run(request: RunRequest) -> RowOutputs:
        steps.append(sum(drawn))
        drawn.clear()
        return RowOutputs({"logits": np.eye(2)[np.zeros(len(request.rows), int)]})

    options = Smoothing(samples=1000, alpha=1e-38)
    outcomes = drive(draws.polled(voters, 2, options), run)
    assert [outcome.label for outcome in outcomes] == [0, 0, 0]
    assert len(steps) > 5
    assert max(steps) <= draws.TEXT_AT_ONCE


def test_raw_lists_certify_by_the_number_of_words(classifier: Classifier) -> None:
    [answer] = ask(classifier, ["bread"], words=1, synonyms="neighbours", samples=500)
    # {bread, soup} against {soup} alone: half of the draws differ, and nothing can be certified.
    assert answer.smoothed.certificate is None
    [answer] = ask(classifier, ["player"], words=1, synonyms="neighbours", samples=500)
    assert answer.smoothed.certificate is None
    [groups] = ask(classifier, ["player"], words=1, samples=500)
    assert groups.smoothed.certificate.words == 1


def test_pairs_are_rewritten_on_both_sides(pair_bundle: Path, file: Path) -> None:
    paired = load(pair_bundle, synonyms={"en": file})
    [answer] = ask(paired, [("the goal", "a match team")], samples=50)
    assert answer.error is None
    assert answer.smoothed.draws <= 50


def test_what_synonyms_need_is_said(bundle: Path, classifier: Classifier) -> None:
    def refused(message: str, who: Classifier = classifier, **asked: Any) -> None:
        with pytest.raises(UsageError, match=message):
            ask(who, ["goal"], **asked)

    refused("has no table of synonyms; use gaussian", load(bundle))
    refused("language=de: has no table of synonyms; there are those of en", language="de")
    refused("language=zh: is written without spaces", language="zh")
    refused("radius with noise=synonym", radius=0.1)
    refused("scale with noise=synonym", scale=0.1)
    refused("words=0: must be at least 1", words=0)
    refused("synonyms=lists: must be one of groups, neighbours", synonyms="lists")
    with pytest.raises(UsageError, match=r"noise=laplace: must be one of gaussian.*synonym"):
        ask(classifier, ["goal"], noise="laplace")


def test_languages_are_told_apart_text_by_text(classifier: Classifier) -> None:
    english = "The goal was scored in the last minute of the match by the visiting team."
    german = "Die Mannschaft gewann das Finale nach Elfmeterschießen vor vielen Zuschauern."
    japanese = "昨日の試合でチームは最後の一分に得点して勝った。"
    answers = ask(classifier, [english, german, japanese, "12"], language=None)
    assert answers[0].error is None
    assert [answer.error.code for answer in answers[1:]] == ["no_synonyms"] * 3
    assert "language=de: has no table" in answers[1].error.message
    assert "without spaces" in answers[2].error.message
    assert "language is not known" in answers[3].error.message


def test_a_bundle_carries_its_tables(checkpoint: Path, file: Path, tmp_path: Path) -> None:
    order = export.Order(synonyms=[f"en={file}"], agreement=0)
    out = export.export(checkpoint, tmp_path / "with", order)
    assert out.manifest.synonyms == {"en": "synonyms/en.json"}
    assert "synonyms/en.json" in out.manifest.files
    served = load(out.path)
    assert served.context.tables.of("en") == synonyms.read(file, "en")
    assert ask(served, ["the goal"])[0].smoothed.draws > 0
    other = tmp_path / "other.json"
    other.write_text('{"goal": ["bread"]}')
    assert load(out.path, synonyms={"en": other}).context.tables.of("en").neighbours == {
        "goal": ["bread"]
    }
    with pytest.raises(UsageError, match="must be LANGUAGE=FILE"):
        export.export(checkpoint, tmp_path / "no", export.Order(synonyms=["en"]))


def test_word_lists_of_thesauri_are_the_same_tables(tmp_path: Path) -> None:
    lists = {"big": ["large", "huge"], "house": ["home"]}
    barred, json_file = tmp_path / "en.tsv", tmp_path / "en.json"
    barred.write_bytes(
        "word\tsynonyms\r\nbig\tlarge|as big as a house\r\nbig\thuge\r\n\r\nhouse\thome\r\n".encode(
            "utf-8-sig"
        )
    )
    json_file.write_text(json.dumps(lists))
    assert synonyms.read(barred, "en") == synonyms.read(json_file, "en")
    for content, words in (
        ("big,large\n", "line 1: has 1 columns, not a word and its synonyms"),
        ("a\tb\tc\n", "line 1: has 3 columns"),
        ("word\tsynonyms\n", "has no word with a neighbour"),
    ):
        barred.write_text(content)
        with pytest.raises(DataError, match=words):
            synonyms.read(barred, "en")
    barred.write_bytes(b"gro\xdf\tbig\n")
    with pytest.raises(DataError, match="is not TSV in UTF-8"):
        synonyms.read(barred, "en")


def test_training_draws_from_the_groups_that_are_served(file: Path, tmp_path: Path) -> None:
    context = Context("en", 0, tmp_path / "lexicons")
    served = synonyms.read(file, "en")
    drawn = load_synonyms(str(file), context, draws="groups")
    assert {frozenset({word, *others}) for word, others in drawn.items()} == {
        frozenset(group) for group in served.groups
    }
    for word, others in drawn.items():
        assert set(served.choices(word, "groups")) == {word, *others}


def test_a_model_that_was_trained_with_the_table_has_no_warning(classifier: Classifier) -> None:
    from dataclasses import replace

    from xlt_serve.bundle import Bundle
    from xlt_serve.modes.smoothed import kind_of, synonym_warning

    def warned(words: dict[str, str], draws: Any = "groups") -> str:
        manifest = replace(classifier.bundle.manifest, noise={"words": words})
        found = classifier.context.tables.of("en")
        assert found is not None
        return str(synonym_warning(Bundle(classifier.bundle.path, manifest), found, draws))

    found = classifier.context.tables.of("en")
    assert found is not None
    trained = {"draws": "groups", "language": "en", "sha256": found.sha256}
    assert warned(trained) == "None"
    assert "drawn from groups" in warned(trained, "neighbours")
    assert "another table" in warned(trained | {"sha256": "0"})
    assert "of de alone" in warned(trained | {"language": "de"})
    manifest = replace(classifier.bundle.manifest, noise={"words": trained})
    assert kind_of(Bundle(classifier.bundle.path, manifest), Smoothing()) == "synonym"


@pytest.mark.real
def test_groups_of_a_real_table_keep_most_of_its_words(data: Path) -> None:
    found = synonyms.read(data / "lexicons" / "en-synonyms.json", "en")
    grouped = sum(map(len, found.groups))
    assert grouped > 0.9 * len(found.neighbours)
    text = "The team won the final match after a great game."
    groups, lists = (rewritten(text, found, draws) for draws in synonyms.DRAWS)
    assert len(groups.overlaps) >= 8
    assert groups.reach(0.51) == len(groups.overlaps)
    assert lists.reach(0.999) == 0  # what the raw bound is worth here, even of unanimous votes
