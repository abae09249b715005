"""CTranslate2: a real OPUS-MT model, and converted ones against transformers' own decoding."""

from __future__ import annotations

import asyncio
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FILLER, WORDS
from xlt_serve.errors import BundleError, DataError, UsageError
from xlt_serve.translation.convert import convert, unpack_argos
from xlt_serve.translation.ctranslate2 import CTranslate2, inspect
from xlt_serve.translation.flores import FLORES
from xlt_serve.translation.protocol import PairRefused, Translation
from xlt_serve.translation.router import Engine, Router

CODES = ["eng_Latn", "deu_Latn", "fra_Latn"]


def translate(engine: CTranslate2, texts: list[str], source: str, target: str) -> list[Any]:
    async def run() -> list[Any]:
        return list(await engine.translate(texts, source, target))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def chinese(opus_zh: Path) -> CTranslate2:
    return CTranslate2(opus_zh)


def test_it_translates_chinese(chinese: CTranslate2) -> None:
    ball, vaccine = translate(
        chinese,
        ["我们去公园打篮球。", "科学家说，新疫苗可以预防这种疾病。他们发表了结果。"],
        "zh",
        "en",
    )
    assert "basketball" in ball.text.lower()
    assert "vaccine" in vaccine.text.lower()
    assert "▁" not in vaccine.text
    assert 0.2 < ball.quality <= 1


def test_a_text_is_translated_alike_in_any_company(chinese: CTranslate2) -> None:
    texts = ["我们去公园打篮球。", "天气很好。" * 20, "好", "2019年，他们发表了研究结果。"]
    together = translate(chinese, texts, "zh", "en")
    alone = [translate(chinese, [text], "zh", "en")[0] for text in texts]
    assert [t.text for t in together] == [t.text for t in alone]


@pytest.mark.parametrize(
    "text",
    [
        *("🙂", "12:30", "\u200b", "ÿ" * 50, "hello"),
        pytest.param("a" * 150, marks=pytest.mark.slow, id="one word"),
        pytest.param("的" * 150, marks=pytest.mark.slow, id="one letter"),
        pytest.param("a" * 600, marks=pytest.mark.slow, id="cut once"),
        pytest.param("a" * 3000, marks=pytest.mark.slow, id="long"),
        pytest.param("的" * 900, marks=pytest.mark.slow, id="long and Chinese"),
    ],
)
def test_odd_texts_are_survived(chinese: CTranslate2, text: str) -> None:
    (out,) = translate(chinese, [text], "zh", "en")
    assert isinstance(out.text, str)


def test_it_takes_its_pair_alone(chinese: CTranslate2) -> None:
    assert chinese.takes("zh", "en")
    assert not chinese.takes("en", "zh")
    with pytest.raises(PairRefused):
        translate(chinese, ["x"], "de", "en")


def test_many_threads_of_callers_share_one_model(opus_zh: Path) -> None:
    one = Router({"opus": Engine(CTranslate2(opus_zh, name="opus"), timeout=60, batch=4)})

    async def many() -> list[list[Any]]:
        texts = [f"他有{n}本书。" for n in range(12)]
        return list(
            await asyncio.gather(
                *(one.translate([t], ["zh"], "en") for t in texts), return_exceptions=False
            )
        )

    out = asyncio.run(many())
    one.close()
    assert all(isinstance(found, Translation) for (found,) in out)
    assert len({found.text for (found,) in out}) >= 8  # numbers come as words, some alike


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real sentencepiece model of the toy words."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("spm")
    lines = [" ".join(words) for words in WORDS.values()] * 20 + [" ".join(FILLER)] * 20
    (folder / "text.txt").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "toy"),
        vocab_size=90,
        minloglevel=3,
        hard_vocab_limit=False,
    )
    return folder / "toy.model"


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory, spm: Path) -> Path:
    """A tiny random Marian model as the hub has them."""
    import sentencepiece
    import torch
    from transformers import MarianConfig, MarianMTModel

    folder = tmp_path_factory.mktemp("hub") / "opus-mt-de-en"
    folder.mkdir()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    tokens = ["</s>", "<unk>", *(p for p in pieces if p not in ("<s>", "</s>", "<unk>")), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    for name in ("source.spm", "target.spm"):
        shutil.copy(spm, folder / name)
    about = {"source_lang": "de", "target_lang": "en", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=len(tokens), d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=64, pad_token_id=len(tokens) - 1, eos_token_id=0,
        decoder_start_token_id=len(tokens) - 1, forced_eos_token_id=0, init_std=0.3,
    )  # fmt: skip
    MarianMTModel(config).save_pretrained(folder)
    return folder


SENTENCES = [
    "the goal was in our match",
    "some cheese with bread today",
    "rain and wind in our town",
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_converted_marian_decodes_as_transformers_does(marian: Path, tmp_path: Path) -> None:
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    made = convert(marian, tmp_path / "de-en", "de", "en", "float32")
    assert (made.kind, made.pair) == ("marian", ("de", "en"))
    engine = CTranslate2(tmp_path / "de-en", beam=1, compute_type="float32")
    model = MarianMTModel.from_pretrained(marian).eval()
    tokenizer = MarianTokenizer.from_pretrained(marian)
    for text, out in zip(SENTENCES, translate(engine, SENTENCES, "de", "en"), strict=True):
        ids = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            expected = model.generate(
                **ids, num_beams=1, do_sample=False, max_new_tokens=3 * ids["input_ids"].shape[1]
            )
        theirs = tokenizer.decode(expected[0], skip_special_tokens=True)
        shared = min(len(theirs), len(out.text), 20)
        assert shared >= 5
        assert theirs[:shared] == out.text[:shared]  # they may stop at different lengths


@pytest.mark.slow
def test_a_converted_nllb_decodes_as_transformers_does(spm: Path, tmp_path: Path) -> None:
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

    hub = tmp_path / "nllb"
    hub.mkdir()
    shutil.copy(spm, hub / "sentencepiece.bpe.model")
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary += [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    tokenizer = NllbTokenizer(
        vocab={piece: i for i, piece in enumerate(vocabulary)},
        merges=[],
        extra_special_tokens=CODES,
        src_lang="deu_Latn",
        tgt_lang="eng_Latn",
    )
    tokenizer.save_pretrained(hub)
    torch.manual_seed(0)
    config = M2M100Config(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
        max_position_embeddings=64, init_std=0.3,
    )  # fmt: skip
    model = M2M100ForConditionalGeneration(config).eval()
    model.save_pretrained(hub)
    made = convert(hub, tmp_path / "out", compute="float32")
    assert (made.kind, made.pair) == ("nllb", None)
    engine = CTranslate2(tmp_path / "out", beam=1, compute_type="float32")
    assert engine.takes("de", "en")
    (out,) = translate(engine, SENTENCES[:1], "de", "en")
    ids = [tokenizer.convert_tokens_to_ids("deu_Latn")]
    ids += tokenizer.convert_tokens_to_ids(processor.encode(SENTENCES[0], out_type=str))
    ids += [tokenizer.eos_token_id]
    with torch.inference_mode():
        expected = model.generate(
            input_ids=torch.tensor([ids]),
            forced_bos_token_id=tokenizer.convert_tokens_to_ids("eng_Latn"),
            num_beams=1,
            max_new_tokens=3 * len(ids),
        )
    theirs = processor.decode(
        [
            t
            for t in tokenizer.convert_ids_to_tokens(expected[0])
            if t not in (*CODES, "</s>", "<s>")
        ]
    )
    shared = min(len(theirs), len(out.text), 20)
    assert theirs[:shared] == out.text[:shared]


def test_an_argos_package_is_unpacked_without_its_pickle(tmp_path: Path) -> None:
    package = tmp_path / "x.argosmodel"
    with zipfile.ZipFile(package, "w") as archive:
        for name in (
            "translate-es_en/metadata.json",
            "translate-es_en/sentencepiece.model",
            "translate-es_en/model/model.bin",
            "translate-es_en/stanza/es/tokenize.pt",
            "translate-es_en/../../evil.txt",
            "translate-es_en/model/../../../evil.txt",
        ):
            archive.writestr(name, json.dumps({"from_code": "es", "to_code": "en"}))
    unpack_argos(package, tmp_path / "out")
    files = sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob("*") if f.is_file())
    assert files == [
        "out/metadata.json",
        "out/model/model.bin",
        "out/sentencepiece.model",
        "x.argosmodel",
    ]
    assert inspect(tmp_path / "out").pair == ("es", "en")


def test_what_can_not_be_converted_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.argosmodel").write_text("no zip")
    with pytest.raises(DataError, match="not an Argos package"):
        convert(tmp_path / "bad.argosmodel", tmp_path / "out")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match="is a bert model"):
        convert(tmp_path / "bert", tmp_path / "out")
    with pytest.raises(DataError, match="not there"):
        convert(tmp_path / "nowhere", tmp_path / "out")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["bad.argosmodel", "bert"]
    with pytest.raises(UsageError, match="there already"):
        convert(tmp_path / "bert", tmp_path / "bert")


def test_folders_that_are_no_model_say_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no CTranslate2 model"):
        inspect(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(BundleError, match="no sentencepiece model"):
        inspect(tmp_path)
    (tmp_path / "sentencepiece.model").write_bytes(b"")
    with pytest.raises(UsageError, match="does not say which languages"):
        inspect(tmp_path)
    assert inspect(tmp_path, ("es", "en")).pair == ("es", "en")
    pytest.importorskip("ctranslate2")
    with pytest.raises(BundleError, match="can't be opened"):
        CTranslate2(tmp_path, source="es", target="en")


def test_nllb_names_every_language_of_the_package() -> None:
    from xlt_serve.text.language import table

    assert set(table().languages) <= set(FLORES)


def test_how_batches_are_cut_changes_no_translation(opus_zh: Path) -> None:
    texts = ["我们去公园打篮球。", "天气很好。" * 10, "好"]
    found = []
    for settings in ({}, {"max_batch_size": 64}, {"max_batch_size": 1, "batch_type": "examples"}):
        engine = CTranslate2(opus_zh, beam=1, device="auto", **settings)  # type: ignore[arg-type]
        found.append([each.text for each in translate(engine, texts, "zh", "en")])
        engine.close()
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "tpu"}, "device = 'tpu': must be cpu, cuda or auto"),
        ({"device_index": [0, 1]}, "must name different devices of the 1 that there are"),
        ({"device_index": []}, "must name different devices"),
        ({"compute_type": "int3"}, "compute_type = 'int3': is none that this cpu has: .*int8"),
        ({"batch_type": "words"}, "must be tokens or examples"),
        ({"max_batch_size": 0}, "max_batch_size = 0: must be at least 1"),
        ({"beam": 0}, "beam = 0: must be at least 1"),
    ],
)
def test_settings_that_this_machine_has_not_are_refused(
    opus_zh: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        CTranslate2(opus_zh, **settings)


def test_a_gpu_that_is_not_there_is_told_before_the_model_is_opened(opus_zh: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    if ctranslate2.get_cuda_device_count():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="finds no GPU here; use 'cpu' or 'auto'"):
        CTranslate2(opus_zh, device="cuda")
