"""LoRA adapters as peft saves them, merged into the weights that they were trained beside.

A linear layer W becomes W + s · B·A with s = alpha / r, or alpha / √r with rank-stabilised LoRA. Other
kinds of adapters, and what peft itself changes in the base model, are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from xlt_serve.errors import DataError, first_line

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MERGE = "merge it with peft: model.merge_and_unload().save_pretrained(folder), and export that"
HEADS = ("classifier.weight", "classifier.out_proj.weight", "score.weight")
_MOVED = ("pissa", "olora", "corda", "loftq")
"""Initialisations that change the base model's weights."""


@dataclass(frozen=True)
class Adapter:
    """``products``: (A, B) by the name of the layer they belong to; ``whole``: tensors that stand in the
    place of the base's, as the head does, by name."""

    base: str
    config: Mapping[str, Any]
    products: Mapping[str, tuple[Tensor, Tensor]]
    whole: Mapping[str, Tensor]

    def scale(self, layer: str) -> float:
        rank = _for(layer, self.config.get("rank_pattern"), self.config["r"])
        alpha = _for(layer, self.config.get("alpha_pattern"), self.config["lora_alpha"])
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    @property
    def labels(self) -> int | None:
        """How many the head has that it brings."""
        return next((len(self.whole[name]) for name in HEADS if name in self.whole), None)


def read(folder: Path) -> Adapter:
    file = folder / CONFIG
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        base = config["base_model_name_or_path"]
        plain = {"r": int(config["r"]), "lora_alpha": float(config["lora_alpha"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            file, f"is no config of a LoRA adapter ({error!r})", "save it with peft again"
        ) from None
    _refuse_kinds(file, config)
    try:
        tensors = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(
            folder / WEIGHTS,
            f"can't be read ({first_line(error)})",
            "save the adapter with peft as safetensors",
        ) from None
    return Adapter(str(base), config | plain, *_sorted(folder / WEIGHTS, tensors))


def merge(model: nn.Module, adapter: Adapter) -> None:
    """Change the model's weights in place, as ``merge_and_unload`` does."""
    own = dict(model.named_parameters())
    for name, (a, b) in adapter.products.items():
        weight = own.get(f"{name}.weight")
        delta = adapter.scale(name) * (b.float() @ a.float())
        if weight is None or weight.shape != delta.shape:
            shape = "none" if weight is None else "×".join(map(str, weight.shape))
            raise DataError(
                f"{WEIGHTS}: {name}",
                f"adds to a weight of {'×'.join(map(str, delta.shape))}, the base model has {shape}",
                f"check base_model_name_or_path in {CONFIG}",
            )
        with torch.no_grad():
            weight.add_(delta)
    for name, tensor in adapter.whole.items():
        if name not in own or own[name].shape != tensor.shape:
            raise DataError(
                f"{WEIGHTS}: {name}",
                "fits no weight of the base model",
                f"check base_model_name_or_path in {CONFIG}",
            )
        with torch.no_grad():
            own[name].copy_(tensor)


def _refuse_kinds(file: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    init = str(config.get("init_lora_weights"))
    wrong = {
        f"peft_type {kind}": kind != "LORA",
        "use_dora": bool(config.get("use_dora")),
        "lora_bias": bool(config.get("lora_bias")),
        "layer_replication": bool(config.get("layer_replication")),
        f"init_lora_weights {init}": init.lower().startswith(_MOVED),
    }
    for value, refused in wrong.items():
        if refused:
            raise DataError(f"{file}: {value}", "is not merged here: plain LoRA alone is", MERGE)


def _sorted(
    file: Path, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """The tensors of a file as products and whole ones."""
    sides: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = re.sub(
            r"\.(modules_to_save|base_layer)\b", "", key.removeprefix("base_model.model.")
        )
        found = re.fullmatch(r"(.+)\.lora_([AB])\.weight", name)
        if found and tensor.dim() == 2:
            sides.setdefault(found[1], {})[found[2]] = tensor
        elif "lora_" in name or found:
            raise DataError(f"{file}: {key}", "belongs to no linear layer", MERGE)
        else:
            whole[name] = tensor
    if half := [name for name, both in sides.items() if len(both) < 2]:
        raise DataError(f"{file}: {half[0]}", "has only one of lora_A and lora_B", "save it again")
    return {name: (both["A"], both["B"]) for name, both in sides.items()}, whole


def _for(layer: str, patterns: Mapping[str, float] | None, default: float) -> float:
    """What a table of patterns says of a layer, as peft reads it."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", layer):
            return value
    return default
