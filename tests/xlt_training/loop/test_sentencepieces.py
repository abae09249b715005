"""Tokenizers of a SentencePiece model alone cut text as the SentencePiece library does."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from transformers import PreTrainedTokenizerFast
from xlt_training.data.sentences import sentences
from xlt_training.loop import pretrained, sentencepieces

from xlt_serve.errors import DataError

NORMAL, UNKNOWN, CONTROL = 1, 2, 3
FAMILIES = {
    "xlm-roberta": ("sentencepiece.bpe.model", {"unk_id": 0, "bos_id": 1, "eos_id": 2}),
    "deberta-v2": ("spm.model", {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}),
}
SPECIAL = {
    "pad_piece": "[PAD]",
    "bos_piece": "[CLS]",
    "eos_piece": "[SEP]",
    "unk_piece": "[UNK]",
}


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it is published: config and SentencePiece model, here of our sentences' pieces."""
    out = tmp_path_factory.mktemp(request.param)
    name, numbers = FAMILIES[request.param]
    special: dict[str, Any] = SPECIAL if request.param == "deberta-v2" else {}
    with (out / name).open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text for texts in sentences().values() for text in texts),
            model_writer=file,
            vocab_size=2000,
            character_coverage=1.0,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
            **numbers,
            **special,
        )
    (out / "config.json").write_text(json.dumps({"model_type": request.param}))
    return out


HARD = [
    "Ａ①ﬁ  x\u3000y",
    "  two \t spaces\n",
    "e\u0301 vs é",
    "ｶﾀｶﾅ ㍿",
    "\u200bnothing",
    "ﷺ …",
    "😀 x",
]


def test_every_sentence_is_cut_as_by_the_library(folder: Path) -> None:
    tokenizer = pretrained.load_tokenizer(folder)
    [file] = folder.glob("*.model")
    original = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for text in [*HARD, *(text for texts in sentences().values() for text in texts)]:
        expected = [
            "?" if number == original.unk_id() else original.id_to_piece(number)
            for number in original.encode(text)
        ]
        given = tokenizer(text, add_special_tokens=False)["input_ids"]
        named = [
            "?" if n == tokenizer.unk_token_id else tokenizer.convert_ids_to_tokens(n)
            for n in given
        ]
        assert named == expected, text


def test_a_wrong_conversion_is_refused(folder: Path) -> None:
    tokenizer = pretrained.load_tokenizer(folder)
    [file] = folder.glob("*.model")
    tokenizer.backend_tokenizer.normalizer = None  # type: ignore[assignment]
    with pytest.raises(DataError, match=r"can't be converted.*tokenizer\.json"):
        sentencepieces.refuse_differences(tokenizer, file, ["Ａ①ﬁ"])


def test_a_file_that_is_none_is_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = pretrained.load_tokenizer(folder)
    (tmp_path / "spm.model").write_bytes(b"\xff\xff nothing")
    with pytest.raises(DataError, match="is no SentencePiece model"):
        sentencepieces.mended(tokenizer, tmp_path / "spm.model")


def published(described: dict[str, Any], out: Path) -> Path:
    """The SentencePiece model that a tokenizer.json of XLM-R was made of, put together again."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    kinds += [(piece, score, NORMAL) for piece, score in described["model"]["vocab"][4:-1]]
    for piece, score, kind in kinds:
        model.pieces.add(piece=piece, score=score, type=kind)
    [charsmap] = [
        part["precompiled_charsmap"]
        for part in described["normalizer"]["normalizers"]
        if part["type"] == "Precompiled"
    ]
    model.normalizer_spec.name = "nmt_nfkc"
    model.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap)
    model.trainer_spec.model_type = 1
    file = out / "sentencepiece.bpe.model"
    file.write_bytes(model.SerializeToString())
    (out / "config.json").write_text(json.dumps({"model_type": "xlm-roberta"}))
    return file


@pytest.mark.real
@pytest.mark.slow
def test_the_real_one_on_real_text_of_21_languages(data: Path, tmp_path: Path) -> None:
    """XLM-R's 250,002 pieces: ids as the library has them, shifted by one as fairseq does. Of three quotes
    in a row two may come first or last: both are as likely."""
    source = data / "tokenizers" / "xlm-roberta" / "tokenizer.json"
    file = published(json.loads(source.read_text(encoding="utf-8")), tmp_path)
    tokenizer: PreTrainedTokenizerFast = pretrained.load_tokenizer(tmp_path)
    original = sentencepiece.SentencePieceProcessor(model_file=str(file))
    files = sorted((data / "text").glob("*.txt"))
    assert len(files) == 21
    for place in files:
        for text in place.read_text(encoding="utf-8").splitlines()[:300]:
            given = tokenizer(text, add_special_tokens=False)["input_ids"]
            expected = [3 if n == 0 else n + 1 for n in original.encode(text)]
            assert given == expected or ("'''" in text and sorted(given) == sorted(expected)), (
                place.name,
                text,
            )
