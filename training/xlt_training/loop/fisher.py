"""The diagonal Fisher information of an encoder under its masked-language-model loss.

Computed once per encoder and language by ``xlt fisher``; the EWC method reads it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast

from xlt_serve.errors import DataError
from xlt_training.loop.pretrained import load_tokenizer, resolve


def diagonal(model: PreTrainedModel, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Mean over texts of the squared gradient of the log-likelihood of their hidden words.

    ``batches``: (ids with masks in them [1, length], the words [1, length], -100 where not hidden).
    Names are those of the encoder without its head.
    """
    base = model.base_model
    chosen = {name: p for name, p in base.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in chosen.items()}
    count = 0
    model.eval()
    for ids, words in batches:
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), words.flatten(), reduction="sum")
        gradients = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
        for name, gradient in zip(chosen, gradients, strict=True):
            if gradient is not None:
                sums[name] += gradient.square()
        count += 1
    if not count:
        raise DataError("the text", "has no sentence to estimate a Fisher from")
    return {name: value / count for name, value in sums.items()}


def masked(
    texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    max_length: int,
    seed: int,
    share: float = 0.15,
) -> Iterable[tuple[Tensor, Tensor]]:
    """One text at a time with ``share`` of its tokens masked, at least one."""
    generator = torch.Generator().manual_seed(seed)
    for text in texts:
        encoded = tokenizer(
            text, truncation=True, max_length=max_length, return_special_tokens_mask=True
        )
        ids = torch.tensor([encoded["input_ids"]])
        free = torch.tensor([encoded["special_tokens_mask"]]) == 0
        if not free.any():
            continue
        hidden = (torch.rand(ids.shape, generator=generator) < share) & free
        if not hidden.any():
            places = free.nonzero()
            row, column = places[int(torch.randint(len(places), (), generator=generator))]
            hidden[row, column] = True
        words = torch.where(hidden, ids, torch.full_like(ids, -100))
        yield torch.where(hidden, torch.full_like(ids, tokenizer.mask_token_id), ids), words


def compute(
    encoder: str,
    texts: Sequence[str],
    sentences: int = 2000,
    max_length: int = 128,
    seed: int = 0,
) -> dict[str, Tensor]:
    """The Fisher of an encoder (name or folder) on ``sentences`` texts drawn by ``seed``."""
    place = resolve(encoder)
    try:
        architectures = AutoConfig.from_pretrained(place).architectures or []
        model = AutoModelForMaskedLM.from_pretrained(
            place, use_safetensors=True, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(encoder, f"can't be loaded as a masked language model ({reason})") from None
    if not any(name.endswith("ForMaskedLM") for name in architectures):
        raise DataError(
            encoder,
            f"has no masked-language-model head (it is {', '.join(architectures) or 'unnamed'})",
            "give the encoder as it was pretrained",
        )
    tokenizer = load_tokenizer(place)
    chosen = random.Random(seed).sample(list(texts), min(sentences, len(texts)))
    progress = tqdm(
        masked(chosen, tokenizer, max_length, seed),
        total=len(chosen),
        disable=not sys.stderr.isatty(),
        desc="fisher",
    )
    return diagonal(model, progress)


def save(folder: Path, name: str, values: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    save_file({key: value.contiguous() for key, value in values.items()}, path)
    return path


def load(folder: Path, name: str, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """A stored Fisher, if it is one of an encoder with parameters of these names and shapes."""
    path = folder / f"{name}.safetensors"
    remedy = (
        f"make it with `xlt fisher ENCODER --languages {name.replace('+', ',')} --out {folder}`"
    )
    if not path.is_file():
        raise DataError(path, "is not there", remedy)
    values = load_file(path)
    wrong = [
        key for key, shape in shapes.items() if key not in values or values[key].shape != shape
    ]
    if wrong:
        raise DataError(path, f"is of another encoder: {wrong[0]} does not fit", remedy)
    if not sum(float(values[key].sum()) for key in shapes) > 0:
        raise DataError(path, "is zero everywhere", remedy)
    return values
