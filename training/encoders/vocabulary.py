"""A SentencePiece unigram vocabulary over all languages, as a ``tokenizer.json`` in XLM-R's layout.

Special tokens stand where XLM-R has them (``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3,
``<mask>`` last), so every tool that knows XLM-R knows this file.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from training.encoders.corpus import Pair, Sentence

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def sample_text(
    sentences: list[Sentence], pairs: list[Pair], per_language: int, seed: int
) -> list[str]:
    """As much text of every language, by characters of its script, so that none is starved.

    A language with little text is repeated up to four times.
    """
    by_language: dict[str, list[str]] = defaultdict(list)
    for sentence in sentences:
        by_language[sentence.language].append(sentence.text)
    for pair in pairs:
        by_language[pair.language].append(pair.other)
    generator = random.Random(seed)
    out: list[str] = []
    for _, texts in sorted(by_language.items()):
        repeats = min(4, -(-per_language // len(texts)))
        pool = texts * repeats
        generator.shuffle(pool)
        out += pool[:per_language]
    return out


def train_pieces(texts: list[str], size: int, folder: Path, threads: int = 2) -> Path:
    """The SentencePiece model file with ``size`` pieces, ``<mask>`` not counted."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "vocabulary.txt"
    source.write_text("\n".join(texts), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(source),
        model_prefix=str(folder / "pieces"),
        vocab_size=size,
        model_type="unigram",
        character_coverage=0.9998,
        normalization_rule_name="nmt_nfkc",
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        num_threads=threads,
        max_sentence_length=2000,
        train_extremely_large_corpus=False,
        minloglevel=1,
    )
    return folder / "pieces.model"


def tokenizer_from_pieces(model_file: Path, max_length: int) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the pieces, scores and normalisation of a SentencePiece model."""
    model = proto.ModelProto()
    model.ParseFromString(model_file.read_bytes())
    vocabulary = [(piece.piece, piece.score) for piece in model.pieces]
    if [piece for piece, _ in vocabulary[:4]] != SPECIAL:
        raise ValueError(
            f"{model_file} does not begin with {SPECIAL}: it was not made by train_pieces"
        )
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens([*SPECIAL, "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )
