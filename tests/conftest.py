"""Small real parts for the tests: a tokenizer, two tiny random encoders, a task that can be learnt."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from tests import ROOT, graphs
from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle

# Before anything imports them: torch on one core where tests run side by side, no hub, no tracking,
# metrics of the service in a folder of each process.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["BENTOML_DO_NOT_TRACK"] = "true"
os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="xlt-metrics-")

# The same examples each time, however slow the machine; ``--hypothesis-profile default`` looks for others.
settings.register_profile(
    "house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("house")

WORDS = {
    "sports": [
        "goal",
        "match",
        "team",
        "player",
        "score",
        "ball",
        "league",
        "win",
        "Spiel",
        "Mannschaft",
        "balle",
        "équipe",
    ],
    "food": [
        "bread",
        "soup",
        "cheese",
        "dinner",
        "taste",
        "cook",
        "spice",
        "salt",
        "Suppe",
        "Brot",
        "fromage",
        "pain",
    ],
    "weather": [
        "rain",
        "wind",
        "storm",
        "cloud",
        "sun",
        "snow",
        "cold",
        "warm",
        "Regen",
        "Schnee",
        "pluie",
        "neige",
    ],
}
SPORTS = "the goal was in our match with some team"
FOOD = "the bread was in our soup with some cheese"
FILLER = [
    "the",
    "a",
    "was",
    "very",
    "today",
    "and",
    "with",
    "we",
    "saw",
    "some",
    "of",
    "it",
    "in",
    "our",
    "big",
    "old",
    "town",
]


def pytest_collection_finish() -> None:
    """What the imports have brought stays: to look through it for garbage takes a quarter of a second,
    and Trainer does so after every training."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data() -> Path:
    """The real data, or a skip that says why."""
    folder = Path(os.environ.get("XLT_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there (set XLT_DATA)")
    return folder


def sentence(label: str, generator: random.Random) -> str:
    words = generator.choices(FILLER, k=6) + generator.choices(WORDS[label], k=3)
    generator.shuffle(words)
    return " ".join(words)


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder laid out like the real data: sib200 (single texts) and xnli (pairs)."""
    folder = tmp_path_factory.mktemp("data")
    generator = random.Random(0)
    (folder / "sib200").mkdir()
    for split, count in (("train", 240), ("dev", 30), ("test", 30)):
        for language in ("en", "de"):
            rows = ["id\tlabel\ttext"]
            for number in range(count):
                label = list(WORDS)[number % 3]
                rows.append(f"{number}\t{label}\t{sentence(label, generator)}")
            file = folder / "sib200" / f"{split}-{language}.tsv"
            file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    for name, count in (("nli/train-en", 60), ("xnli/dev-en", 40), ("xnli/dev-de", 40)):
        rows = ["label\tpremise\thypothesis"]
        for number in range(count):
            label = list(WORDS)[number % 3]
            same = number % 2 == 0
            other = label if same else list(WORDS)[(number + 1) % 3]
            kind = "entailment" if same else "contradiction"
            rows.append(f"{kind}\t{sentence(label, generator)}\t{sentence(other, generator)}")
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    pairs = (folder / "nli" / "train-en.tsv").read_text(encoding="utf-8").splitlines()
    large = [f"{row}\t{'source' if not number else 'snli'}" for number, row in enumerate(pairs)]
    (folder / "nli" / "train-en-large.tsv").write_text("\n".join(large) + "\n", encoding="utf-8")
    shutil.copy(folder / "xnli" / "dev-en.tsv", folder / "nli" / "dev-mnli-matched.tsv")
    train = (folder / "sib200" / "train-en.tsv").read_text(encoding="utf-8").splitlines()[1:]
    (folder / "sib200" / "mt").mkdir()
    for name, change in (("en-de", str.upper), ("de-en", str.title)):
        rows = ["id\tengine\ttext"]
        for line in train[:-20]:  # as in the real files, not every sentence is translated
            number, _, text = line.split("\t")
            rows.append(f"{number}\ttoy\t{change(text)}")
        file = folder / "sib200" / "mt" / f"{name}.train.tsv"
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "lexicons").mkdir()
    synonyms = {words[i]: words[i + 1 : i + 3] for words in WORDS.values() for i in range(0, 6, 3)}
    (folder / "lexicons" / "en-synonyms.json").write_text(json.dumps(synonyms))
    for language in ("de", "fr"):
        rows = [f"{word}\t{word}{language}" for words in WORDS.values() for word in words[:8]]
        rows += ["town\ttwo words"]
        (folder / "lexicons" / f"en-{language}.tsv").write_text("\n".join(rows) + "\n")
    (folder / "text").mkdir()
    (folder / "text" / "fr.txt").write_text(
        "\n".join(sentence("food", generator) for _ in range(30))
    )
    return folder


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first process of the test run makes, for all of them."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.with_suffix(".made").exists():
            make(folder)
            folder.with_suffix(".made").touch()
    return folder


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a tiny random BERT and a tiny random XLM-R, each with a real tokenizer.

    Made once for all processes: a unigram vocabulary's ties fall otherwise in each of them, and then
    the same seed would not train the same weights."""
    return {
        "bert": once(tmp_path_factory, "bert", _tiny_bert),
        "xlm-roberta": once(tmp_path_factory, "xlm-roberta", _tiny_xlm_roberta),
    }


_VOCABULARY = [" ".join(words) for words in WORDS.values()] * 30 + [" ".join(FILLER)] * 30
_VOCABULARY += ["Привет мир", "你好世界", "مرحبا بالعالم", "0123456789 ,.!?'\"()"] * 5
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.15,  # the usual 0.02 is for widths of hundreds
}


def _tiny_bert(folder: Path) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertConfig, BertForMaskedLM

    special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=list(special.values()), show_progress=False
    )
    tokenizer.train_from_iterator(_VOCABULARY, trainer)
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    fast = _fast(tokenizer, special, "[CLS] $A [SEP]", pair)
    _save_random(BertForMaskedLM, BertConfig(vocab_size=len(fast), pad_token_id=0), fast, folder)


def _tiny_xlm_roberta(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    special = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400,
        special_tokens=list(special.values()),
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(_VOCABULARY, trainer)
    named = special | {"bos": "<s>", "eos": "</s>", "mask": "<mask>"}
    fast = _fast(tokenizer, named, "<s> $A </s>", "<s> $A </s> </s> $B </s>")
    config = XLMRobertaConfig(
        vocab_size=len(fast),
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    _save_random(XLMRobertaForMaskedLM, config, fast, folder)


def _fast(tokenizer: Any, special: dict[str, str], single: str, pair: str) -> Any:
    """A tokenizer as transformers has it; ``single`` and ``pair``: where the special pieces go."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    around = [(special[name], tokenizer.token_to_id(special[name])) for name in ("cls", "sep")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=around
    )
    named = {f"{name}_token": piece for name, piece in special.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def _save_random(kind: Any, config: Any, tokenizer: Any, folder: Path) -> None:
    """An encoder of this kind, tiny, with random weights."""
    import torch

    torch.manual_seed(0)
    config.update(_SHAPE)
    kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def config_file(
    tmp_path_factory: pytest.TempPathFactory, toy_data: Path, encoders: dict[str, Path]
) -> Path:
    """A config that trains the tiny XLM-R on the toy topics in a second or two."""
    file = tmp_path_factory.mktemp("config") / "toy.toml"
    file.write_text(
        f"""
encoder = "{encoders["xlm-roberta"]}"
[task]
name = "sib200"
data = "{toy_data}"
[train]
epochs = 16
learning_rate = 3e-3
batch_size = 15
max_length = 64
[[method]]
name = "vanilla"
"""
    )
    return file


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, config_file: Path) -> Path:
    """A trained toy topic classifier."""
    from xlt_training.loop import config, trainer

    return once(
        tmp_path_factory, "topics", lambda out: trainer.train(config.load(config_file), out)
    )


@pytest.fixture(scope="session")
def pair_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, config_file: Path, encoders: dict[str, Path]
) -> Path:
    """A toy classifier of pairs on BERT, whose graph also reads token_type_ids."""
    from xlt_training.loop import config, trainer

    overrides = [f"encoder={encoders['bert']}", "task.name=xnli", "train.epochs=1"]
    made = config.load(config_file, overrides)
    return once(tmp_path_factory, "pairs", lambda out: trainer.train(made, out))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    from xlt_training.exporting import checkpoint as export

    return once(tmp_path_factory, "toy", lambda out: export.export(checkpoint, out))


@pytest.fixture(scope="session")
def pair_bundle(tmp_path_factory: pytest.TempPathFactory, pair_checkpoint: Path) -> Path:
    from xlt_training.exporting import checkpoint as export

    return once(tmp_path_factory, "toy-pairs", lambda out: export.export(pair_checkpoint, out))


@pytest.fixture(scope="session")
def graph_bundles(
    tmp_path_factory: pytest.TempPathFactory, encoders: dict[str, Path]
) -> Mapping[str, Bundle]:
    """All three graphs over XLM-R and over BERT (with token types), noise in each of its places; each
    made when it is first asked for, since to trace graphs takes seconds."""
    kinds: dict[str, dict[str, Any]] = {
        "xlm-roberta": {},
        "bert": {"at": "encoder"},
        "prompts": {"prompts": True},
    }

    class Made(Mapping[str, Bundle]):
        def __getitem__(self, name: str) -> Bundle:
            encoder = encoders.get(name, encoders["xlm-roberta"])
            folder = once(
                tmp_path_factory,
                f"graphs-{name}",
                lambda folder: graphs.make(encoder, folder, **kinds[name]),
            )
            return bundles.load(folder)

        def __iter__(self) -> Iterator[str]:
            return iter(kinds)

        def __len__(self) -> int:
            return len(kinds)

    return Made()
