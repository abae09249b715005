"""A SentencePiece unigram vocabulary over all languages, as a ``tokenizer.json`` in XLM-R's layout.

Its pieces are the teacher's where the text needs them, so that they can begin with the teacher's
embeddings, and newly learnt ones for the languages that the teacher never saw.

Special tokens stand where XLM-R has them (``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3,
``<mask>`` last), so every tool that knows XLM-R knows this file.
"""

from __future__ import annotations

import math
import random
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from xlt_training.encoders.corpus import Pair, Sentence

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


def merge_pieces(
    model_file: Path,
    known: Sequence[tuple[str, float]],
    texts: Mapping[str, Sequence[str]],
    size: int,
    rounds: int = 3,
) -> None:
    """Rewrite ``model_file`` with the ``size`` pieces, of its own and the ``known`` ones, that the
    texts of all languages use most, each language counting the same.

    In each round the texts are cut by the pieces that are left, the counts become the scores, and
    the rarest pieces go (hard expectation-maximisation); letters stay, so that nothing is unknown.
    """
    model = proto.ModelProto()
    model.ParseFromString(model_file.read_bytes())
    scores = {piece.piece: piece.score for piece in model.pieces[len(SPECIAL) :]}
    # Its scores come from a few languages, the teacher's from many: theirs count where both know.
    scores |= {piece: score for piece, score in known if score < 0}
    letters = _letters(texts)
    lowest = min(scores.values())
    for letter in letters:
        scores.setdefault(letter, lowest)
    for number in range(rounds):
        used = _usage(model, scores, texts)
        left = size - len(SPECIAL) if number == rounds - 1 else round(1.5 * size)
        kept = sorted(
            scores, key=lambda piece: (piece not in letters, -used.get(piece, 0.0), piece)
        )
        floor = min(used.values()) / 2
        mass = sum(used.values())
        scores = {piece: math.log(max(used.get(piece, 0), floor) / mass) for piece in kept[:left]}
    chosen = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    model_file.write_bytes(_with_pieces(model, chosen).SerializeToString())


def _letters(texts: Mapping[str, Sequence[str]], coverage: float = 0.9998) -> set[str]:
    """The characters that make up ``coverage`` of each language."""
    out = {"▁"}
    for _, rows in sorted(texts.items()):
        counts = Counter("".join("".join(unicodedata.normalize("NFKC", t).split()) for t in rows))
        total, so_far = sum(counts.values()), 0
        for letter, count in counts.most_common():
            out.add(letter)
            so_far += count
            if so_far >= coverage * total:
                break
    return out


def _usage(
    model: proto.ModelProto, scores: Mapping[str, float], texts: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """piece → its share of a language's pieces, summed over languages."""
    cutter = sentencepiece.SentencePieceProcessor(
        model_proto=_with_pieces(model, list(scores.items())).SerializeToString()
    )
    used: dict[str, float] = defaultdict(float)
    for _, rows in sorted(texts.items()):
        counts = Counter(i for ids in cutter.encode(list(rows)) for i in ids)
        total = sum(counts.values())
        for i, count in counts.items():
            if i >= len(SPECIAL):
                used[cutter.id_to_piece(i)] += count / total
    return used


def _with_pieces(model: proto.ModelProto, pieces: Sequence[tuple[str, float]]) -> proto.ModelProto:
    out = proto.ModelProto()
    out.CopyFrom(model)
    del out.pieces[len(SPECIAL) :]
    for piece, score in pieces:
        out.pieces.add(piece=piece, score=score)
    out.trainer_spec.vocab_size = len(out.pieces)
    return out


def tokenizer_from_pieces(model_file: Path, max_length: int) -> PreTrainedTokenizerFast:
    """A fast tokenizer with the pieces, scores and normalisation of a SentencePiece model."""
    model = proto.ModelProto()
    model.ParseFromString(model_file.read_bytes())
    # Four digits cut no text differently but for ties, and halve the file.
    vocabulary = [(piece.piece, round(piece.score, 4)) for piece in model.pieces]
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
