"""Make the table of language identification: ``python -m xlt_training.encoders.language_table --data ../shared/data``.

Softmax regression over the hashed n-grams of ``xlt_serve.text.language``, on pieces of sentences from one
word to whole ones, all languages alike often. The text is the encoder's: no evaluation text, nothing
non-commercial. The class "none of these" is learnt from the names that Unicode's CLDR has in other
languages; the known languages' names are learnt too, or a list of names would itself be foreign.
Writes ``xlt_serve/languages/table.bin`` and ``table.json``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from xlt_serve.text import language
from xlt_training.encoders import corpus, names

OTHERS = [
    "af",
    "am",
    "az",
    "be",
    "bn",
    "bs",
    "ca",
    "cs",
    "cy",
    "da",
    "et",
    "eu",
    "fa",
    "fi",
    "ga",
    "gl",
    "gu",
    "he",
    "hr",
    "hu",
    "hy",
    "id",
    "is",
    "ka",
    "kk",
    "km",
    "kn",
    "ky",
    "lo",
    "lt",
    "lv",
    "mk",
    "ml",
    "mn",
    "mr",
    "ms",
    "my",
    "ne",
    "no",
    "pa",
    "ps",
    "ro",
    "si",
    "sk",
    "sl",
    "sq",
    "sr",
    "sr-Latn",
    "sv",
    "ta",
    "te",
    "tk",
    "uk",
    "uz",
    "yue",
    "zu",
]
NO_SPACES = ("ja", "th", "zh")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--work", type=Path, default=Path("build/language"))
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = gathered(options.data, options.work)
    weights = fit(texts, options.steps, options.batch, options.seed)
    save(weights)


def gathered(data: Path, work: Path) -> dict[str, list[str]]:
    """language → its sentences, and under "other" names in languages that are none of ours."""
    out: dict[str, list[str]] = defaultdict(list)
    banned = corpus.evaluation_fingerprints(data) | corpus.noncommercial_fingerprints(data)
    for sentence in corpus.sentences(data, banned):
        out[sentence.language].append(sentence.text)
    for pair in corpus.pairs(data, banned):
        out[pair.language].append(pair.other)
    cldr = names.fetch(work, [lg for lg in corpus.LANGUAGES if lg != "en"] + OTHERS)
    for lg, table in cldr.items():
        mine = [name for _, name in sorted(table.items())]
        generator = random.Random(lg)
        generator.shuffle(mine)
        lists = [", ".join(mine[i : i + 3]) for i in range(0, len(mine), 3)]
        out[lg if lg in corpus.LANGUAGES else "other"] += lists
    return dict(out)


def piece(text: str, lg: str, generator: random.Random) -> str:
    """From one word of a text to all of it, short ones more often."""
    parts = list(text) if lg in NO_SPACES else text.split()
    unit = 3 if lg in NO_SPACES else 1
    draw = generator.random()
    if draw < 0.25 or not parts:
        return text
    most = generator.randint(1, 4) if draw < 0.65 else generator.randint(4, 9)
    size = min(len(parts), most * unit)
    start = 0 if generator.random() < 0.5 else generator.randint(0, len(parts) - size)
    return ("" if lg in NO_SPACES else " ").join(parts[start : start + size])


def batches(
    texts: dict[str, list[str]], classes: list[str], size: int, generator: random.Random
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """ids of all n-grams, where each text begins, 1/√(their number), class."""
    while True:
        rows: list[np.ndarray] = []
        labels: list[int] = []
        while len(rows) < size:
            label = generator.randrange(len(classes))
            text = piece(generator.choice(texts[classes[label]]), classes[label], generator)
            grams = language.features(text)
            if len(grams):
                rows.append(grams.astype(np.int64))
                labels.append(label)
        counts = np.array([len(row) for row in rows])
        yield (
            torch.from_numpy(np.concatenate(rows)),
            torch.from_numpy(np.concatenate([[0], counts.cumsum()[:-1]])),
            torch.from_numpy(1 / np.sqrt(counts)).float(),
            torch.tensor(labels),
        )


def fit(texts: dict[str, list[str]], steps: int, size: int, seed: int) -> np.ndarray:
    """[buckets, classes] weights."""
    generator = random.Random(seed)
    classes = [*corpus.LANGUAGES, "other"]
    bag = nn.EmbeddingBag(1 << language.BITS, len(classes), mode="sum")
    nn.init.zeros_(bag.weight)
    optimiser = torch.optim.Adam(bag.parameters(), lr=0.02)
    source = batches(texts, classes, size, generator)
    smooth = 0.0
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 0.02 * (1 - step / steps) + 1e-4
        ids, offsets, scales, labels = next(source)
        loss = nn.functional.cross_entropy(bag(ids, offsets) * scales[:, None], labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if step % 500 == 0 or step == steps - 1:
            print(f"step {step}: loss {smooth:.4f}", flush=True)
    return bag.weight.detach().numpy()


def save(weights: np.ndarray) -> None:
    # A common shift of a bucket's weights changes no probability: spend the 8 bits on differences.
    centred = weights - weights.mean(axis=1, keepdims=True)
    scale = float(np.quantile(np.abs(centred), 0.9999)) / 127
    table = np.clip(np.round(centred / scale), -127, 127).astype(np.int8)
    language.FOLDER.mkdir(exist_ok=True)
    (language.FOLDER / "table.bin").write_bytes(table.tobytes())
    described = {"languages": corpus.LANGUAGES, "scale": scale}
    (language.FOLDER / "table.json").write_text(json.dumps(described) + "\n")


if __name__ == "__main__":
    main()
