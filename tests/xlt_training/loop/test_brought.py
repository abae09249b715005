"""What a classifier's own files say of it, and what they must not say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import ElectraConfig
from xlt_training.loop import brought

from tests.xlt_training.classifiers import edit, save
from xlt_serve.errors import DataError
from xlt_serve.modes.zero_shot import yes_and_no


@pytest.fixture(scope="module")
def finished(encoders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(
        encoders["bert"], tmp_path_factory.mktemp("made") / "mood", ["bad", "good", "so so"]
    )


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "mood"))


@torch.inference_mode()
def test_it_computes_what_transformers_does(finished: Path) -> None:
    model, described = brought.load(str(finished), "de")
    assert (described.labels, described.pair) == (["bad", "good", "so so"], False)
    assert (described.task, described.source_language) == ("classification", "de")
    assert described.config == {"encoder": "mood"}
    assert described.max_length == 512  # of the position table: the tokenizer names none
    ids = torch.randint(5, 60, (3, 12))
    expected = model.hf(input_ids=ids).logits
    given = model.hf.classifier(model.hf.bert.pooler(model.hf.bert(ids).last_hidden_state))
    torch.testing.assert_close(given, expected)


def test_the_tokenizer_may_read_less_than_the_positions(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", model_max_length=48)
    assert brought.load(str(folder), "en")[1].max_length == 48


def test_type_ids_are_given_where_the_tokenizer_gives_them(folder: Path) -> None:
    assert not brought.load(str(folder), "en")[0].encoding.type_ids
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    edit(folder / "tokenizer_config.json", model_input_names=inputs)
    assert brought.load(str(folder), "en")[0].encoding.type_ids


NLI = ("entailment", "neutral", "contradiction")


@given(
    names=st.permutations(NLI) | st.permutations(["entailment", "not_entailment"]),
    spelling=st.sampled_from([str, str.upper, str.title, lambda name: name.replace("_", "-")]),
)
def test_entailment_is_told_in_any_spelling_and_order(names: list[str], spelling: Any) -> None:
    found = yes_and_no([spelling(name) for name in names])
    no = "contradiction" if len(names) == 3 else "not_entailment"
    assert found == (names.index("entailment"), names.index(no))


@pytest.mark.parametrize(
    "labels", [["yes", "no"], ["entailment", "neutral"], ["contradiction", "x"]]
)
def test_other_labels_are_no_entailment(labels: list[str]) -> None:
    assert yes_and_no(labels) is None


@pytest.mark.parametrize(
    ("config", "pair"),
    [
        ({}, False),
        ({"finetuning_task": "qqp"}, True),
        ({"finetuning_task": "sst2"}, False),
        ({"sentence_transformers": {"version": "5"}}, True),
        (
            {
                "id2label": {"0": "Entailment", "1": "Contradiction", "2": "Neutral"},
                "label2id": None,
            },
            True,
        ),
    ],
)
def test_pairs_are_told_by_the_config(config: dict[str, Any], pair: bool, folder: Path) -> None:
    edit(folder / "config.json", **config)
    assert brought.load(str(folder), "en")[1].pair == pair


def test_pairs_are_told_by_the_user(finished: Path) -> None:
    assert brought.load(str(finished), "en", pairs=True)[1].pair


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown architecture": (
        {"model_type": "mamba"},
        r"model_type mamba.*known here: bert, roberta",
    ),
    "no architecture": ({"model_type": None}, "model_type None"),
    "another head": (
        {"architectures": ["BertForMaskedLM"]},
        "architectures BertForMaskedLM: is no classifier",
    ),
    "multi-label": (
        {"problem_type": "multi_label_classification"},
        "multi_label.*one of the labels.*single_label_classification",
    ),
    "regression": ({"problem_type": "regression"}, "is a regression"),
    "one output": ({"id2label": {"0": "LABEL_0"}, "label2id": None}, "1 outputs.*is a regression"),
    "labels that clash": (
        {"id2label": {"0": "a", "1": "b", "2": "a"}, "label2id": None},
        "label 'a': must be a name of one output alone",
    ),
    "a blank label": ({"id2label": {"0": "a", "1": " ", "2": "c"}, "label2id": None}, "label ' '"),
    "a gap": (
        {"id2label": {"0": "a", "1": "b", "3": "c"}, "label2id": None},
        "from 0 on, was: 0, 1, 3",
    ),
    "no numbers": ({"id2label": {"zero": "a"}}, "must give number → name"),
    "two orders": (
        {"label2id": {"bad": 2, "good": 1, "so so": 0}},
        "label 'bad': is 0 in id2label and 2 in label2id",
    ),
    "num_labels": ({"num_labels": 5}, "num_labels is 5"),
    "more labels than outputs": (
        {"id2label": {str(n): f"l{n}" for n in range(5)}, "label2id": None},
        "don't fit its config",
    ),
    "another width": ({"hidden_size": 64}, "don't fit its config"),
    "a width that is none": ({"hidden_size": "wide"}, "mood: "),
    "fewer rows": ({"vocab_size": 50}, "don't fit its config"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_config_that_lies_is_refused(lie: str, folder: Path) -> None:
    values, said = LIES[lie]
    edit(folder / "config.json", **values)
    with pytest.raises(DataError, match=said):
        brought.load(str(folder), "en")


def test_weights_that_are_not_there_are_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = load_file(file)
    lost = {name: value for name, value in whole.items() if not name.startswith("classifier")}
    save_file(lost, file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"has no weights for classifier.bias, classifier.weight; "):
        brought.load(str(folder), "en")
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(DataError, match="its weights can't be read"):
        brought.load(str(folder), "en")
    file.unlink()
    with pytest.raises(DataError, match="has no safetensors weights"):
        brought.load(str(folder), "en")


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    file = folder / "tokenizer.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = described["model"]["vocab"]
    vocabulary["another"] = len(vocabulary) + 7
    file.write_text(json.dumps(described))
    with pytest.raises(DataError, match=rf"pieces up to {len(vocabulary) + 6}, its embedding has"):
        brought.load(str(folder), "en")


def test_a_tokenizer_without_padding_is_refused(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", pad_token=None)
    (folder / "special_tokens_map.json").unlink(missing_ok=True)
    with pytest.raises(
        DataError, match=r"no padding token.*set pad_token in tokenizer_config\.json"
    ):
        brought.load(str(folder), "en")


def test_a_folder_that_is_none_and_a_name_that_nobody_has(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a finished checkpoint: there is no such folder"):
        brought.load("nobody/has-this", "en")
    with pytest.raises(DataError, match=r"neither xlt\.json nor config\.json"):
        brought.load(str(tmp_path), "en")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json: can't be read"):
        brought.load(str(tmp_path), "en")


def test_a_name_of_the_hub_is_looked_up_there(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its cache: no test talks to the hub."""
    revision = "0" * 40
    home = tmp_path / "models--someone--mood"
    shutil.copytree(finished, home / "snapshots" / revision)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(revision)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    described = brought.load("someone/mood", "en")[1]
    assert described.config == {"encoder": "someone/mood"}
    assert described.labels == ["bad", "good", "so so"]


def test_an_encoder_alone_is_no_classifier(encoders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="architectures BertForMaskedLM"):
        brought.load(str(encoders["bert"]), "en")
    ElectraConfig().save_pretrained(tmp_path)  # names no architecture
    with pytest.raises(DataError, match=r"has no (tokenizer|safetensors)"):
        brought.load(str(tmp_path), "en")
