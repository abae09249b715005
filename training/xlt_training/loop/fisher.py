"""The diagonal Fisher information of an encoder under its masked-language-model loss.

Computed once per encoder and language by ``xlt fisher``; the EWC method reads it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForMaskedLM, PreTrainedModel, PreTrainedTokenizerFast

from xlt_serve.errors import DataError, UsageError, first_line
from xlt_training.loop.pretrained import load_tokenizer, resolve

logger = logging.getLogger(__name__)


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
    for given in batches:
        ids, words = (tensor.to(model.device) for tensor in given)
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
    device: str = "cpu",
) -> dict[str, Tensor]:
    """The Fisher of an encoder (name or folder) on ``sentences`` texts drawn by ``seed``."""
    model = language_model(encoder)
    try:
        nn.Module.to(model, torch.device(device))
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device {device}", f"can't be used ({first_line(error)})", "use cpu"
        ) from None
    tokenizer = load_tokenizer(resolve(encoder))
    chosen = drawn(texts, sentences, seed)
    progress = tqdm(
        masked(chosen, tokenizer, max_length, seed),
        total=len(chosen),
        disable=not sys.stderr.isatty(),
        desc="fisher",
    )
    return {name: value.cpu() for name, value in diagonal(model, progress).items()}


def drawn(texts: Sequence[str], sentences: int, seed: int) -> list[str]:
    """Which texts an estimate is made of."""
    return random.Random(seed).sample(list(texts), min(sentences, len(texts)))


def language_model(encoder: str) -> PreTrainedModel:
    """An encoder with the head that it was pretrained with. The output layer gets weights of its own:
    tied, its gradient would count as the word embeddings'."""
    place = resolve(encoder)
    try:
        architectures = AutoConfig.from_pretrained(place).architectures or []
        model: PreTrainedModel = AutoModelForMaskedLM.from_pretrained(
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
    output = model.get_output_embeddings()
    if output is not None:
        output.weight = nn.Parameter(output.weight.detach().clone(), requires_grad=False)
    return model


@dataclass(frozen=True)
class Source:
    """What a Fisher was made of. ``text``: a digest of the texts that were drawn; ``weights``: of the
    encoder's."""

    encoder: str
    weights: str
    text: str
    sentences: int
    seed: int


def source_of(
    encoder: str, weights: str, texts: Sequence[str], sentences: int = 2000, seed: int = 0
) -> Source:
    chosen = drawn(texts, sentences, seed)
    digest = hashlib.sha256("\n".join(chosen).encode()).hexdigest()[:16]
    return Source(encoder, weights, digest, len(chosen), seed)


def save(folder: Path, name: str, values: dict[str, Tensor], source: Source | None = None) -> Path:
    """As safetensors, with its source in their header."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.safetensors"
    header = {} if source is None else {"source": json.dumps(asdict(source))}
    part = path.with_suffix(".part")
    save_file({key: value.contiguous() for key, value in values.items()}, part, header)
    part.replace(path)
    return path


def file_of(folder: Path, name: str) -> Path:
    """The file of a stored Fisher."""
    path = folder / f"{name}.safetensors"
    if not path.is_file():
        raise DataError(path, "is not there", _remedy(folder, name))
    return path


def read_source(path: Path) -> Source | None:
    """What a stored Fisher was made of; None: the file does not say, as those of the first edition."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
    return Source(**json.loads(header["source"])) if "source" in header else None


def load(
    folder: Path, name: str, shapes: Mapping[str, torch.Size], weights: str = ""
) -> dict[str, Tensor]:
    """A stored Fisher, if it is one of the encoder with these ``weights``, or, where the file or the
    caller does not know, of one with parameters of these names and shapes."""
    path, remedy = file_of(folder, name), _remedy(folder, name)
    source = read_source(path)
    if source is None:
        logger.warning("%s does not say which encoder and text it is of; %s", path, remedy)
    elif weights and source.weights != weights:
        told = f"is of other weights ({source.encoder}, {source.weights}; here {weights})"
        raise DataError(path, told, remedy)
    values = load_file(path)
    wrong = [
        key for key, shape in shapes.items() if key not in values or values[key].shape != shape
    ]
    if wrong:
        raise DataError(path, f"is of another encoder: {wrong[0]} does not fit", remedy)
    if not sum(float(values[key].sum()) for key in shapes) > 0:
        raise DataError(path, "is zero everywhere", remedy)
    return values


def _remedy(folder: Path, name: str) -> str:
    languages = name.replace("+", ",")
    return f"make it with `xlt fisher ENCODER --languages {languages} --out {folder}`"
