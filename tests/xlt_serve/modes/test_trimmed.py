"""Texts that a trimmed vocabulary was not kept for are answered with a warning, on all roads."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.xlt_serve.serving.conftest import Start, services, valid
from xlt_serve import bundle as bundles
from xlt_serve import load
from xlt_serve.bundle import Bundle
from xlt_serve.classifier import Classifier
from xlt_serve.cli.main import main
from xlt_serve.errors import BundleError, UsageError
from xlt_serve.modes import trimmed
from xlt_serve.scoring import Order, score, spark
from xlt_serve.serving.admission import Limits
from xlt_serve.text.tokens import Encoder

HINDI = "मंत्री ने संसद में नए कानून की घोषणा की और सबने उसे सुना।"
GERMAN = "Das Spiel der Mannschaft war heute sehr gut, und alle waren froh."
LANGUAGES = ["en", "de", "es"]


def noting(bundle: Bundle, folder: Path, **trimmed: object) -> Path:
    """The same bundle, which says that it was trimmed."""
    shutil.copytree(bundle.path, folder)
    checks = bundle.manifest.checks | {"trimmed": {"before": 500, "after": 400} | trimmed}
    bundles.save(folder, replace(bundle.manifest, checks=checks))
    return folder


@pytest.fixture(scope="module")
def cut(graph_bundles: dict[str, Bundle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all three graphs; its tokenizer has no piece of Devanagari."""
    folder = tmp_path_factory.mktemp("trimmed") / "cut"
    return noting(graph_bundles["xlm-roberta"], folder, languages=LANGUAGES)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    with services(tmp_path_factory) as started:
        yield started


@pytest.mark.parametrize("options", [{}, {"mode": "smoothed", "noise": "gaussian", "scale": 0.1}])
def test_a_language_outside_is_warned_of_and_one_inside_is_not(
    cut: Path, options: dict[str, object]
) -> None:
    hindi, german = load(cut).predict([HINDI, GERMAN], **options)  # type: ignore[arg-type]
    assert (hindi.language, german.language) == ("hi", "de")
    assert hindi.label in ("a", "b", "c", None)
    assert str(hindi.warning).startswith("the vocabulary was kept for en, de, es, not for hi; ")
    assert str(hindi.warning).endswith("% of this text's pieces are unknown")
    assert german.warning is None
    assert str(hindi.warning) in hindi.to_dict()["warning"]


@pytest.mark.parametrize("family", ["bert", "xlm-roberta"])
def test_the_share_of_unknown_pieces_is_that_of_transformers(
    encoders: dict[str, Path], family: str
) -> None:
    reference = AutoTokenizer.from_pretrained(encoders[family])
    encoder = Encoder(encoders[family] / "tokenizer.json", 512)
    for text in (HINDI, GERMAN, f"{GERMAN} {HINDI}", "bread"):
        ids = reference(text, add_special_tokens=False)["input_ids"]
        expected = sum(token == reference.unk_token_id for token in ids) / len(ids)
        [tokens] = encoder.encode([text])
        found = encoder.unknown_share(piece.ids for piece in tokens.pieces)  # type: ignore[union-attr]
        assert found == pytest.approx(expected)
    assert encoder.unknown_share([]) == 0.0


def test_a_vocabulary_of_bytes_knows_everything(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([GERMAN], trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = Encoder(tmp_path / "tokenizer.json", 64)
    assert encoder.unknown_share(encoder.ids([HINDI])) == 0.0  # type: ignore[arg-type]


def test_where_the_language_is_not_told_unknown_pieces_tell(cut: Path) -> None:
    classifier = load(cut)
    odd, plain = classifier.predict(["⠓⠑⠇⠇⠕ ⠓⠑⠇⠇⠕", "bread 12345"])
    assert odd.language is None
    assert "language is not known, and" in str(odd.warning)
    assert plain.warning is None


def test_the_language_that_the_request_names_counts(cut: Path) -> None:
    classifier = load(cut)
    for told in ("es", "es-MX", "DE"):
        [answer] = classifier.predict([GERMAN], language=told)
        assert answer.warning is None, told
    [answer] = classifier.predict([GERMAN], language="ckb")
    assert "not for ckb" in str(answer.warning)


def test_a_translation_is_what_is_read_by_translate_and_not_by_paired(cut: Path) -> None:
    classifier = load(cut)
    given = ["The minister announced a new law in parliament today."]
    [translated] = classifier.predict([HINDI], mode="translate", translations=given)
    assert (translated.language, translated.warning) == ("hi", None)
    [plain] = classifier.predict([HINDI], mode="translate", translations=[None])
    [paired] = classifier.predict([HINDI], mode="paired", translations=given)
    assert "not for hi" in str(plain.warning)
    assert "not for hi" in str(paired.warning)


def test_a_bundle_that_did_not_note_its_languages_has_the_pieces_alone(
    graph_bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    """Those that were exported before the languages were noted."""
    older = load(noting(graph_bundles["xlm-roberta"], tmp_path / "older"))
    hindi, german = older.predict([HINDI, GERMAN])
    assert str(hindi.warning).startswith("the vocabulary was trimmed; this text's language is hi,")
    assert german.warning is None


def test_whole_vocabularies_never_warn_and_answer_as_they_did(
    graph_bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(self: Encoder, pieces: object) -> float:
        raise AssertionError("nobody counts the pieces of a bundle that was not trimmed")

    monkeypatch.setattr(Encoder, "unknown", never)
    classifier = Classifier(graph_bundles["xlm-roberta"])
    for mode in ("plain", "translate", "paired"):
        [answer] = classifier.predict([HINDI], mode=mode)  # type: ignore[arg-type]
        assert answer.warning is None
        assert "warning" not in answer.to_dict()


def test_both_warnings_of_a_vote_are_told(cut: Path) -> None:
    options = {"mode": "smoothed", "noise": "gaussian", "scale": 0.1, "samples": 20}
    [answer] = load(cut).predict([HINDI], **options)  # type: ignore[arg-type]
    assert answer.smoothed is not None
    assert answer.smoothed.warning is not None
    assert answer.to_dict()["warning"] == f"{answer.warning}; {answer.smoothed.warning}"


def test_it_goes_over_http_and_out_of_the_command(
    start: Start, cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [prediction.to_dict() for prediction in load(cut).predict([HINDI, GERMAN])]
    assert "not for hi" in expected[0]["warning"]
    assert "warning" not in expected[1]
    client = start(bundles={"mine": str(cut)}, limits=Limits(wait=60.0))
    body = valid("Answer", client.post("/classify", json={"texts": [HINDI, GERMAN]}).json())
    assert body["predictions"] == expected
    (tmp_path / "texts").write_text(f"{HINDI}\n{GERMAN}\n", encoding="utf-8")
    assert main(["predict", str(tmp_path / "texts"), "--bundle", str(cut)]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("warning") for line in printed] == [expected[0]["warning"], None]


@pytest.mark.parametrize("out", ["o.csv", "o.jsonl", "o.parquet"])
def test_scoring_has_a_column_for_them(cut: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "in.csv").write_text(f"text\n{HINDI}\n{GERMAN}\n", encoding="utf-8")
    score(Order(str(tmp_path / "in.csv"), str(tmp_path / out), bundle=str(cut)))
    if out.endswith("parquet"):
        rows = pq.read_table(tmp_path / out).to_pylist()
    elif out.endswith("jsonl"):
        rows = [json.loads(line) for line in (tmp_path / out).read_text("utf-8").splitlines()]
    else:
        rows = list(csv.DictReader((tmp_path / out).read_text("utf-8").splitlines()))
    assert "not for hi" in rows[0]["xlt_warning"]
    assert not rows[1]["xlt_warning"]


def test_scoring_with_a_whole_vocabulary_has_no_such_column(
    graph_bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    bundle = graph_bundles["xlm-roberta"].path
    (tmp_path / "in.csv").write_text(f"text\n{HINDI}\n", encoding="utf-8")
    score(Order(str(tmp_path / "in.csv"), str(tmp_path / "o.csv"), bundle=str(bundle)))
    header = (tmp_path / "o.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header.endswith("xlt_error")


def test_an_input_that_has_the_column_is_refused(cut: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(f"text,xlt_warning\n{HINDI},x\n", encoding="utf-8")
    order = Order(str(tmp_path / "in.csv"), str(tmp_path / "o.csv"), bundle=str(cut))
    with pytest.raises(UsageError, match="xlt_warning: is in the input already"):
        score(order)


def test_the_recipe_for_spark_has_the_column_too(cut: Path) -> None:
    class Schema:
        fields: Sequence[object] = ()

    assert spark.schema(Schema(), str(cut)).endswith("`xlt_warning` string")
    frame = pandas.DataFrame({"text": [HINDI, GERMAN]})
    [found] = spark.scorer(str(cut))(iter([frame]))
    assert "not for hi" in found["xlt_warning"][0]
    assert pandas.isna(found["xlt_warning"][1])


def test_a_manifest_with_languages_that_are_none_is_refused(
    graph_bundles: dict[str, Bundle], tmp_path: Path
) -> None:
    with pytest.raises(BundleError, match=r"checks.trimmed.languages=.* must be a list"):
        noting(graph_bundles["xlm-roberta"], tmp_path / "odd", languages="en")


CODES = st.sampled_from(["en", "de", "hi", "zh", "no", "nb", "pt-BR", "zh_Hant"])


@given(st.lists(CODES, max_size=4), st.none() | CODES | st.lists(CODES, min_size=2, max_size=2))
def test_a_warning_names_what_is_outside(kept: list[str], told: str | list[str] | None) -> None:
    quiet, loud = (trimmed.warning(kept, told, share) for share in (0.0, 1.0))
    spoken = [told] if isinstance(told, str) else told or []
    plain = {"nb": "no", "pt-BR": "pt", "zh_Hant": "zh"}
    known = {plain.get(code, code) for code in kept}
    outside = {code for code in spoken if plain.get(code, code) not in known}
    if kept and spoken:  # then the languages decide, and not the pieces
        assert (quiet is not None) == (loud is not None) == bool(outside)
        assert quiet is None or all(code in quiet.partition("not for")[2] for code in outside)
    else:
        assert quiet is None
        assert loud is not None


def test_a_long_list_of_languages_is_cut() -> None:
    many = [f"l{number}" for number in range(1000)]
    said = trimmed.warning(many, "hi", 0.5)
    assert said is not None
    assert len(said) < 250
