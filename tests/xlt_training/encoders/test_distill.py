from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast
from xlt_training.encoders import dictionaries, examples, initial, teacher, vocabulary
from xlt_training.encoders.batches import hide
from xlt_training.encoders.corpus import Pair, Sentence
from xlt_training.encoders.distillation import Distillation
from xlt_training.encoders.examples import Material
from xlt_training.encoders.student import IGNORED

from tests.conftest import WORDS, sentence

CONFIG: dict[str, Any] = {
    "model": {"layers": 1, "width": 16, "heads": 2, "vocabulary": 80, "max_length": 64},
    "train": {
        "seed": 0,
        "tokens": 128,
        "block": 60,
        "longest": 32,
        "learning_rate": 1e-3,
        "warm_up": 2,
        "weight_decay": 0.01,
        "clip": 1.0,
        "mask": 0.15,
        "temperature": 0.05,
        "negatives": 4,
        "pieces": 20,
        "average": 0.9,
    },
    "weights": {
        "follow": 4.0,
        "follow_mean": 1.0,
        "contrast": 0.5,
        "masked_words": 0.3,
        "entailment": 1.0,
    },
    "tasks": {"entailment": 0.2},
}


def texts() -> list[str]:
    generator = random.Random(0)
    return [sentence(generator.choice(list(WORDS)), generator) for _ in range(300)]


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vocabulary.train_pieces(texts(), 80, tmp_path_factory.mktemp("pieces"))


@pytest.fixture(scope="module")
def tokenizer(pieces: Path) -> PreTrainedTokenizerFast:
    return vocabulary.tokenizer_from_pieces(pieces, 64)


@pytest.fixture(scope="module")
def material() -> Material:
    rows = texts()
    pools: dict[str, dict[str, list[tuple[str, str, int]]]] = {}
    for language in examples.LANGUAGES:
        if language in examples.TEACHER_LANGUAGES:
            pools[language] = {"own": [(text, "", i) for i, text in enumerate(rows[:50])]}
        else:
            pools[language] = {
                "translation": [(rows[i], "", i) for i in range(50, 100)],
                "both": [(rows[i], rows[i + 100], i) for i in range(50, 100)],
                "masked": [(text, "", -1) for text in rows[200:250]],
            }
    tasks = {"entailment": [(rows[i], rows[i + 1], i % 3) for i in range(90)]}
    return Material(targets=rows, pools=pools, tasks=tasks)


def make(work: Path, tokenizer: PreTrainedTokenizerFast, material: Material) -> Distillation:
    targets = np.random.default_rng(0).normal(size=(300, 512)).astype(np.float16)
    place = {text: number for number, text in enumerate(material.targets)}

    def vectors(texts: Sequence[str]) -> np.ndarray:
        return targets[[place[text] for text in texts]]

    return Distillation(CONFIG, work, work / "out", tokenizer, material, vectors)


def advance(run: Distillation, steps: int) -> None:
    """The loop of Distillation.train, without its clock."""
    while steps:
        batches = run.batches(run.block)
        while run.batch < len(batches) and steps:
            run.one_step(batches[run.batch], factor=1.0)
            run.batch, steps = run.batch + 1, steps - 1
        if run.batch == len(batches):
            run.block, run.batch = run.block + 1, 0


def test_a_resumed_run_equals_an_uninterrupted_one(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, material: Material
) -> None:
    whole = make(tmp_path / "a", tokenizer, material)
    advance(whole, 20)
    (tmp_path / "b").mkdir()
    first = make(tmp_path / "b", tokenizer, material)
    advance(first, 7)
    first.save_checkpoint()
    second = make(tmp_path / "b", tokenizer, material)
    second.start()
    advance(second, 13)
    assert (second.block, second.batch, second.step) == (whole.block, whole.batch, whole.step)
    for name, value in whole.student.state_dict().items():
        assert torch.equal(value, second.student.state_dict()[name]), name


def test_what_is_saved_opens_in_transformers_and_goes_on(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, material: Material
) -> None:
    run = make(tmp_path, tokenizer, material)
    advance(run, 3)
    run.save_encoder(tmp_path / "out")
    model = AutoModel.from_pretrained(tmp_path / "out", dtype=torch.float32)
    masked = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    again = AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = again(["the team saw snow", "bread"], return_tensors="pt", padding=True)
    run.student.eval()
    with torch.inference_mode():
        expected = run.student.vectors(inputs["input_ids"], inputs["attention_mask"]).hidden
        words = run.student.language_model(**inputs).logits
        real = inputs["attention_mask"].bool()
        given = model.eval()(**inputs).last_hidden_state
        torch.testing.assert_close(given[real], expected[real], atol=5e-3, rtol=5e-3)
        torch.testing.assert_close(
            masked.eval()(**inputs).logits[real], words[real], atol=2e-2, rtol=1e-2
        )
    fresh = make(tmp_path, tokenizer, material)
    fresh.start()
    assert fresh.step == 3
    value = fresh.student.language_model.roberta.embeddings.word_embeddings.weight
    expected_value = run.student.language_model.roberta.embeddings.word_embeddings.weight
    torch.testing.assert_close(value, expected_value, atol=1e-3, rtol=1e-3)


def test_the_student_learns_to_follow(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, material: Material
) -> None:
    run = make(tmp_path, tokenizer, material)
    batches = run.batches(0)
    before = np.mean([run.one_step(batch, 1.0)["follow"] for batch in batches[:5]])
    advance(run, 60)
    after = np.mean([run.one_step(batch, 1.0)["follow"] for batch in batches[:5]])
    assert after < before - 0.1


def test_batches_keep_to_the_budget_and_padding_is_masked(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, material: Material
) -> None:
    batches = make(tmp_path, tokenizer, material).batches(3)
    assert sum(len(batch.aims) for batch in batches) == 60
    for batch in batches:
        assert batch.input_ids.numel() <= 128 or len(batch.aims) == 1
        assert torch.equal(batch.attention_mask == 0, batch.input_ids == tokenizer.pad_token_id)
        hidden = batch.words != IGNORED
        assert (batch.words[hidden] > 3).all()
    again = make(tmp_path, tokenizer, material).batches(3)
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(batches, again, strict=True))


def test_masking_has_berts_shares(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = np.full(40_000, 50)
    words = np.full_like(ids, IGNORED)
    hide(ids, words, tokenizer, 0.15, np.random.default_rng(0))
    chosen = words != IGNORED
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (ids[chosen] == tokenizer.mask_token_id).mean() == pytest.approx(0.8, abs=0.02)
    assert (ids[chosen] == 50).mean() == pytest.approx(0.1, abs=0.02)
    assert (ids[~chosen] == 50).all()


def test_draws_are_reproducible_and_cover_the_languages(material: Material) -> None:
    first = examples.draw(material, 500, seed=1, block=4)
    assert first == examples.draw(material, 500, seed=1, block=4)
    assert first != examples.draw(material, 500, seed=1, block=5)
    assert sum(share for _, share in examples.language_shares()) == pytest.approx(1)
    assert any(example.target == -1 and example.masked for example in first)
    assert any(example.second for example in first)


def test_tasks_get_their_share_with_the_words_of_a_side_in_another_language(
    material: Material,
) -> None:
    lexicons = {"de": {word: ["ZZZ"] for word in " ".join(texts()).split()}}
    switching = Material(material.targets, material.pools, lexicons, material.tasks)
    drawn = examples.draw(switching, 4000, 0, 0, {"entailment": 0.2, "paraphrase": 0.3})
    asked = [example for example in drawn if example.task == "entailment"]
    # There are no paraphrases here, so all of the rest is without a label.
    assert len(asked) / 4000 == pytest.approx(0.2, abs=0.02)
    assert all(e.target == -1 and e.second and e.label in (0, 1, 2) for e in asked)
    switched = [("ZZZ" in e.text, "ZZZ" in e.second) for e in asked]
    assert {(True, True), (True, False), (False, True), (False, False)} == set(switched)


def test_long_texts_are_drawn_more_often() -> None:
    pools = {
        language: {"own": [("x" * 10, "", 0), ("y" * 110, "", 1)]}
        for language in examples.LANGUAGES
    }
    for language in set(examples.LANGUAGES) - set(examples.TEACHER_LANGUAGES):
        pools[language] = {"translation": pools[language]["own"]}
    drawn = examples.draw(Material(pools=pools), 4000, 0, 0)
    long = sum(example.target for example in drawn) / len(drawn)
    assert 0.8 < long < 0.95


def test_switching_respects_share_and_dictionary() -> None:
    lexicon = {"goal": ["bao"], "city": ["jiji", "mji"]}
    text = "The goal of two cities is a Goal, not a team."
    everything = examples.switch(text, lexicon, 1.0, random.Random(0))
    assert everything.startswith("The bao of two ")
    assert everything.endswith(" is a bao, not a team.")
    assert examples.switch(text, lexicon, 0.0, random.Random(0)) == text
    many = [examples.switch("goal", lexicon, 0.7, random.Random(i)) for i in range(2000)]
    assert Counter(many)["bao"] / 2000 == pytest.approx(0.7, abs=0.04)


def test_the_fast_tokenizer_equals_sentencepiece(
    pieces: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    reference = sentencepiece.SentencePieceProcessor(str(pieces))
    for text in [*texts()[:100], "  two  spaces ", "Ｆｕｌｌ width", "never seen: ☃"]:
        assert tokenizer(text)["input_ids"][1:-1] == reference.encode(text)
    assert tokenizer("a", "b")["input_ids"][0] == 0
    assert tokenizer.mask_token_id == len(tokenizer) - 1


def test_vocabulary_sample_is_even() -> None:
    many = [Sentence("en", f"text {i}") for i in range(1000)] + [
        Sentence("sw", f"neno {i}") for i in range(40)
    ]
    sample = vocabulary.sample_text(many, [Pair("sw", "a", "ziada")], per_language=200, seed=0)
    assert sum("text" in text for text in sample) == 200
    assert sum("text" not in text for text in sample) == 164


def test_pieces_that_the_text_uses_stay_and_letters_always(tmp_path: Path) -> None:
    """The teacher's pieces displace worse ones, rare ones go, and nothing becomes unknown."""
    model = vocabulary.train_pieces(texts(), 80, tmp_path)
    known = [("<unk>", 0.0), ("▁goal", -5.0), ("▁snowflake", -6.0), ("▁team", -5.0)]
    rows = {"en": ["goal team goal", "team goal Q"] * 50, "sw": texts()}
    vocabulary.merge_pieces(model, known, rows, size=70)
    merged = vocabulary.tokenizer_from_pieces(model, 64)
    reference = sentencepiece.SentencePieceProcessor(str(model))
    pieces = {reference.id_to_piece(i) for i in range(reference.get_piece_size())}
    assert len(pieces) == reference.get_piece_size() == 70
    assert {"▁goal", "▁team", "Q"} <= pieces
    assert not {"▁snowflake", "<unk2>"} & pieces
    for text in [*texts()[:50], "goal Q team"]:
        ids = reference.encode(text)
        assert 3 not in ids
        assert merged(text)["input_ids"][1:-1] == ids
    assert reference.encode("goal team", out_type=str) == ["▁goal", "▁team"]


def test_pieces_begin_as_the_teacher_knows_them_or_as_what_they_translate(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    generator = np.random.default_rng(0)
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    goal, snow = (
        tokenizer(word, add_special_tokens=False)["input_ids"][-1] for word in ("goal", "snow")
    )
    known = [(names[goal], -3.0), (names[snow], -3.0), ("▁aim", -4.0), ("▁ice", -4.0)]
    table = generator.normal(size=(4, 64)).astype(np.float32)
    centred = table - table.mean(axis=0)
    pools: dict[str, Any] = {
        "de": {"own": [("snow", "", 1)] * 9},
        "sw": {"dictionary": [("goal", "", 0)] * 3, "translation": [("goal", "", 1)] * 3},
    }
    material = Material(targets=["aim", "ice"], pools=pools)
    out, counts = initial.piece_vectors(tokenizer, material, known, table)
    np.testing.assert_allclose(out[snow], centred[1], rtol=1e-5)
    # Swahili's "goal" means what the dictionary says, not what the sentence or the spelling does.
    cosine = out[goal] @ centred[2] / np.linalg.norm(out[goal]) / np.linalg.norm(centred[2])
    assert cosine == pytest.approx(1, abs=1e-5)
    assert (counts[snow], counts[goal]) == (9, 6)


def test_a_narrower_table_keeps_the_directions_that_the_text_uses() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(200, 32)).astype(np.float32)
    vectors[:100, 8:] = 0  # the first hundred live in eight dimensions
    counts = np.array([50.0] * 100 + [0.0] * 100)
    reduced = initial.reduce_width(vectors, counts, 8, deviation=0.05)
    assert reduced.std() == pytest.approx(0.05)
    before, after = vectors[:100] @ vectors[:100].T, reduced[:100] @ reduced[:100].T
    np.testing.assert_allclose(after / after[0, 0], before / before[0, 0], atol=1e-4)


@pytest.mark.slow
def test_the_teachers_table_is_aligned_across_languages(tmp_path: Path) -> None:
    """Words that translate each other are near; a table with its rows mixed up would not be."""
    path = teacher.fetch(tmp_path)
    place = {piece: i for i, (piece, _) in enumerate(teacher.pieces(path))}
    table = teacher.table(path)
    assert len(table) >= len(place)
    words = ["▁dog", "▁Hund", "▁perro", "▁house", "▁Haus", "▁casa"]
    vectors = table[[place[word] for word in words]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = vectors @ vectors.T
    assert likeness[:3, :3].min() > 0.5 > likeness[:3, 3:].max()


def test_dictd_entries(tmp_path: Path) -> None:
    """A database in dictd's own format, with the oddities of the real ones."""
    blocks = [
        ("goal", "goal /ɡəʊl/ <n>\n1. цел, гол\n   an aim\nresult of a match\n"),
        ("Aleppo", "Aleppo <pn>\nХа́леб\ncity in Syria\n"),
        ("00-database-info", "о базе\n"),
    ]
    digits = dictionaries._DIGITS

    def number(value: int) -> str:
        text = digits[value % 64]
        while value := value // 64:
            text = digits[value % 64] + text
        return text

    body, lines = b"", []
    for head, text in blocks:
        lines.append(f"{head}\t{number(len(body))}\t{number(len(text.encode()))}")
        body += text.encode()
    (tmp_path / "d.index").write_text("\n".join(lines) + "\n")
    (tmp_path / "d.dict.dz").write_bytes(gzip.compress(body))
    found = list(dictionaries.entries(tmp_path / "d.index", "bg"))
    assert found == [("goal", "цел"), ("goal", "гол"), ("Aleppo", "Халеб")]
    assert dictionaries.lexicon([("to run", "бягам"), ("high school", "x")]) == {"run": ["бягам"]}
