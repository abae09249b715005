"""What is read of each set, on a small folder in the shape of the real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from xlt_training.encoders import corpus, free_sets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "text/more/de.txt": "Der Hund  schläft.\n\nEin Satz.\n",
        "parallel/more/en-de.tsv": "The dog sleeps.\tDer Hund schläft.\twesnoth\n"
        "Cancel\tcancel\tvscode\n"
        "No\tDas ist ein viel zu langer Satz\tvscode\n"
        "From nowhere.\tVon nirgendwo.\tunknown\n",
        "commands/pt-br.tsv": "intent\tdomain\ttext\nx\ty\tligue a luz\n",
        "commands/en.tsv": "intent\tdomain\ttext\nx\ty\tturn on the light\n",
        "xsid/train-en.tsv": "intent\tslots\ttext\nx\tO\tset an alarm\n",
        "intents/a-train.tsv": "intent\ttext\nx\tset an alarm\nx\tlost my card\n",
        "intents/a-valid.tsv": "intent\ttext\nx\theld back\n",
        "nli/train-en-large.tsv": "label\tpremise\thypothesis\tsource\n"
        "neutral\tp1\th1\tsnli\ncontradiction\tp2\th2\tmnli\nentailment\tp3\th3\tanli\n",
        "nli/train-en.tsv": "label\tpremise\thypothesis\tsource\n"
        "neutral\tA sick one.\tNo.\tsick\nneutral\tOf no licence.\tYes.\tcad\n",
        "pawsx/train-en.tsv": "label\tsentence1\tsentence2\n1\ta b\tb a\n",
        "lexicons/free/en-de.tsv": "in\tZoll\ndog\tKöter\ndog\tHund\ndog\tHundsfott\ndog\tdog\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def test_pairs_need_a_named_licence_and_two_texts(folder: Path) -> None:
    assert list(free_sets.pairs(folder, "de")) == [("The dog sleeps.", "Der Hund schläft.")]
    assert list(free_sets.pairs(folder, "fr")) == []


def test_entailment_is_of_the_free_sources_alone(folder: Path) -> None:
    assert list(free_sets.entailment(folder)) == [("p1", "h1", 1), ("p2", "h2", 2)]
    assert list(free_sets.paraphrases(folder)) == [("a b", "b a", 1)]
    texts = list(free_sets.texts(folder))
    assert texts[:2] == [("de", "Der Hund schläft."), ("de", "Ein Satz.")]
    assert ("en", "p2") in texts
    assert ("en", "p3") not in texts


def test_the_text_of_the_older_entailment_sets_is_kept_out(folder: Path) -> None:
    banned = corpus.noncommercial_fingerprints(folder)
    assert {corpus.fingerprint(text) for text in ("a sick one", "of no licence")} <= banned
    assert corpus.fingerprint("p1") not in banned


def test_utterances_are_distinct_and_of_train_splits(folder: Path) -> None:
    assert free_sets.utterances(folder) == ["set an alarm", "lost my card", "turn on the light"]
    assert ("pt", "ligue a luz") in list(free_sets.commands(folder))


def test_of_translations_the_usual_ones_stay(folder: Path) -> None:
    often = free_sets.word_counts(iter(["Der Hund, der Hund.", "Köter! Köter, Hund"]))
    assert often["hund"] == 3
    assert free_sets.words(folder, "de", often) == [("dog", "Hund"), ("dog", "Köter")]
    assert free_sets.words(folder, "de", often, most=1) == [("dog", "Hund")]
    assert free_sets.words(folder, "de", most=2) == [("dog", "Hund"), ("dog", "Köter")]
    assert free_sets.words(folder, "fr") == []
