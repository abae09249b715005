"""LoRA adapters against the closed form, layer by layer."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForSequenceClassification
from xlt_training.loop import brought, lora

from xlt_serve.errors import DataError

LAYER = "roberta.encoder.layer.{}.attention.self.{}"


def tensors(rank: int = 4, labels: int = 3) -> dict[str, torch.Tensor]:
    """As peft names them: query and value of both layers, and a head."""
    torch.manual_seed(1)
    out = {}
    for layer in (0, 1):
        for side in ("query", "value"):
            name = f"base_model.model.{LAYER.format(layer, side)}"
            out[f"{name}.lora_A.weight"] = torch.randn(rank, 32)
            out[f"{name}.lora_B.weight"] = torch.randn(32, rank)
    head = "base_model.model.classifier"
    out |= {f"{head}.dense.weight": torch.randn(32, 32), f"{head}.dense.bias": torch.randn(32)}
    out |= {f"{head}.out_proj.weight": torch.randn(labels, 32)}
    out |= {f"{head}.out_proj.bias": torch.randn(labels)}
    # As bias = "lora_only" has them saved.
    name = f"base_model.model.{LAYER.format(0, 'query')}.base_layer.bias"
    out |= {name: torch.randn(32)}
    return out


def saved(
    folder: Path, base: Path, more: dict[str, torch.Tensor] | None = None, **config: Any
) -> Path:
    folder.mkdir(exist_ok=True)
    whole = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 4, "lora_alpha": 10}
    (folder / lora.CONFIG).write_text(json.dumps(whole | config))
    save_file(tensors() if more is None else more, folder / lora.WEIGHTS)
    return folder


@pytest.mark.parametrize("rslora", [False, True])
def test_the_product_is_added_and_the_head_replaced(
    rslora: bool, encoders: dict[str, Path], tmp_path: Path
) -> None:
    adapter = saved(tmp_path / "adapter", encoders["xlm-roberta"], use_rslora=rslora)
    model, described = brought.load(str(adapter), "en")
    assert described.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    base = AutoModelForSequenceClassification.from_pretrained(encoders["xlm-roberta"], num_labels=3)
    before, after, added = base.state_dict(), model.hf.state_dict(), tensors()
    scale = 10 / math.sqrt(4) if rslora else 10 / 4
    for name, value in after.items():
        a = added.get(f"base_model.model.{name.removesuffix('weight')}lora_A.weight")
        b = added.get(f"base_model.model.{name.removesuffix('weight')}lora_B.weight")
        if a is not None and b is not None:
            expected = before[name] + scale * torch.einsum("or,ri->oi", b, a)
        else:
            peft = re.sub(r"(query)\.(bias)", r"\1.base_layer.\2", f"base_model.model.{name}")
            expected = added.get(peft, before[name])
        torch.testing.assert_close(value, expected)


def test_a_table_of_patterns_gives_layers_their_own_scale(
    encoders: dict[str, Path], tmp_path: Path
) -> None:
    patterns = {"rank_pattern": {"layer.1.attention.self.query": 2}, "alpha_pattern": {"value": 3}}
    adapter = lora.read(saved(tmp_path, encoders["xlm-roberta"], **patterns))
    assert adapter.scale(LAYER.format(0, "query")) == 10 / 4
    assert adapter.scale(LAYER.format(1, "query")) == 10 / 2
    assert adapter.scale(LAYER.format(1, "value")) == 3 / 4


@settings(max_examples=25)
@given(
    rank=st.integers(1, 5),
    width=st.integers(1, 7),
    height=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_a_merged_layer_computes_what_both_parts_do(
    rank: int, width: int, height: int, seed: int
) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, height))
    a, b, x = torch.randn(rank, width), torch.randn(height, rank), torch.randn(3, width)
    adapter = lora.Adapter("", {"r": rank, "lora_alpha": 3.0}, {"0": (a, b)}, {})
    expected = model(x) + 3.0 / rank * (x @ a.T @ b.T)
    lora.merge(model, adapter)
    torch.testing.assert_close(model(x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type IA3.*merge_and_unload"),
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights pissa"),
        ({"r": "four"}, "is no config of a LoRA adapter"),
        ({"base_model_name_or_path": None}, "base_model_name_or_path None"),
    ],
)
def test_what_is_not_plain_lora_is_refused(
    config: dict[str, Any], said: str, encoders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        brought.load(str(saved(tmp_path, encoders["xlm-roberta"], **config)), "en")


def test_an_adapter_of_another_model_is_refused(encoders: dict[str, Path], tmp_path: Path) -> None:
    deeper = {name.replace("layer.1", "layer.7"): value for name, value in tensors().items()}
    with pytest.raises(DataError, match=r"layer.7.*the base model has none.*base_model_name"):
        brought.load(str(saved(tmp_path / "a", encoders["xlm-roberta"], deeper)), "en")
    # This base has no pooler: training began with a random one, which the adapter does not hold.
    with pytest.raises(DataError, match=r"has no weights for bert\.pooler"):
        brought.load(str(saved(tmp_path / "d", encoders["bert"])), "en")
    half = {
        name: value
        for name, value in tensors().items()
        if "0.attention.self.query.lora_B" not in name
    }
    with pytest.raises(DataError, match="has only one of lora_A and lora_B"):
        brought.load(str(saved(tmp_path / "b", encoders["xlm-roberta"], half)), "en")
    odd = tensors() | {"base_model.model.x.lora_embedding_A": torch.zeros(4, 4)}
    with pytest.raises(DataError, match="belongs to no linear layer"):
        brought.load(str(saved(tmp_path / "c", encoders["xlm-roberta"], odd)), "en")


def test_a_config_beside_the_adapter_names_its_labels(
    encoders: dict[str, Path], tmp_path: Path
) -> None:
    adapter = saved(tmp_path, encoders["xlm-roberta"])
    names = {"0": "neg", "1": "neu", "2": "pos"}
    told = json.dumps({"model_type": "xlm-roberta", "id2label": names})
    (adapter / "config.json").write_text(told)
    assert brought.load(str(adapter), "en")[1].labels == ["neg", "neu", "pos"]
    told = json.dumps({"model_type": "xlm-roberta", "id2label": {"0": "a", "1": "b"}})
    (adapter / "config.json").write_text(told)
    with pytest.raises(DataError, match="2 labels: the adapter's head has 3"):
        brought.load(str(adapter), "en")
