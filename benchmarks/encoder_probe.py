"""Is one encoder better than another? ``python -m benchmarks.encoder_probe small build/encoder/snapshot``.

A light look while an encoder trains: frozen vectors under a logistic regression, dev data alone,
English labels for every language. ``benchmarks.encoder`` fine-tunes and is what is quoted.

- SIB-200 topics: fitted on train (701), on dev in 21 languages;
- xSID intents: fitted on 2,000 train utterances, on valid in 12 languages;
- entailment: fitted on the first 2,000 pairs of MNLI-matched, on 1,000 others and on 250 of XNLI dev.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
from xlt_training.data import languages, load_split
from xlt_training.encoders.tables import rows
from xlt_training.loop import pretrained

from benchmarks.encoder import logistic_regression
from xlt_serve.runtime.batching import plan

PENALTIES = (1e-4, 1e-3, 1e-2)
XNLI = ("en", "de", "zh", "th", "bg", "ar", "sw")
Texts = Sequence[tuple[str, str | None]]


class FrozenEncoder:
    """Texts or pairs → [n, 2 · width]: the first token and the mean over tokens."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(
            folder, dtype=torch.float32, add_pooling_layer=False, attn_implementation="eager"
        )
        self.model.eval()

    @torch.inference_mode()
    def __call__(self, texts: Texts) -> torch.Tensor:
        encoded = [
            self.tokenizer(first, second, truncation=True, max_length=128)["input_ids"]
            for first, second in texts
        ]
        out = torch.zeros(len(encoded), 2 * self.model.config.hidden_size)
        for batch in plan([len(ids) for ids in encoded], 8192):
            padded = self.tokenizer.pad(
                {"input_ids": [encoded[i] for i in batch]}, return_tensors="pt"
            )
            with torch.autocast("cpu", torch.bfloat16):
                hidden = self.model(**padded).last_hidden_state.float()
            real = padded["attention_mask"].unsqueeze(-1).float()
            out[batch] = torch.cat([hidden[:, 0], (hidden * real).sum(1) / real.sum(1)], dim=1)
        return out


def probe(
    train: tuple[torch.Tensor, list[str]],
    dev: tuple[torch.Tensor, list[str]],
    tests: dict[str, tuple[torch.Tensor, list[str]]],
) -> dict[str, float]:
    """Accuracy on each of ``tests``; the penalty is the best on ``dev``, which is English."""
    vectors, answers = train
    labels = sorted(set(answers))
    centre, spread = vectors.mean(0), vectors.std(0) + 1e-3
    y = torch.tensor([labels.index(answer) for answer in answers])

    def accuracy(weights: torch.Tensor, x: torch.Tensor, truth: list[str]) -> float:
        best = ((x - centre) / spread @ weights[:-1] + weights[-1]).argmax(1)
        return float(np.mean([labels[int(b)] == t for b, t in zip(best, truth, strict=True)]))

    x = (vectors - centre) / spread
    fitted = [logistic_regression(x, y, len(labels), penalty) for penalty in PENALTIES]
    weights = max(fitted, key=lambda w: accuracy(w, *dev))
    return {name: accuracy(weights, *test) for name, test in tests.items()}


def topics_or_intents(encoder: FrozenEncoder, task: str, data: Path, most: int) -> dict[str, float]:
    def split(name: str, language: str) -> tuple[torch.Tensor, list[str]]:
        found = load_split(task, data, name, language)
        step = max(1, len(found) // most)
        found = found[::step]
        return encoder([(e.text, None) for e in found]), [str(e.label) for e in found]

    tests = {language: split("dev", language) for language in languages(task, data, "dev")}
    return probe(split("train", "en"), tests["en"], tests)


def entailment(encoder: FrozenEncoder, data: Path) -> dict[str, float]:
    def read(path: Path, part: slice) -> tuple[torch.Tensor, list[str]]:
        found = list(rows(path))[part]
        return encoder([(r["premise"], r["hypothesis"]) for r in found]), [
            r["label"] for r in found
        ]

    matched = data / "nli" / "dev-mnli-matched.tsv"
    dev = read(matched, slice(8000, 9000))
    tests = {f"xnli {lg}": read(data / "xnli" / f"dev-{lg}.tsv", slice(250)) for lg in XNLI}
    return probe(read(matched, slice(2000)), dev, {"mnli": dev} | tests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("encoders", nargs="+", help="names or folders")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    results = {}
    for name in options.encoders:
        folder = Path(pretrained.resolve(name))
        encoder = FrozenEncoder(folder)
        found = {
            "sib200": topics_or_intents(encoder, "sib200", options.data, most=701),
            "xsid": topics_or_intents(encoder, "xsid", options.data, most=2000),
            "entailment": entailment(encoder, options.data),
        }
        progress = json.loads((folder / "progress.json").read_text())
        results[name] = {"tokens": progress["tokens"], **found}
        print(f"{name}: {progress['tokens'] / 1e6:.1f} M tokens")
        for task, scores in found.items():
            mean = np.mean(
                [value for lg, value in scores.items() if lg.split()[-1] not in ("en", "mnli")]
            )
            each = " ".join(f"{lg} {value:.3f}" for lg, value in scores.items())
            print(f"  {task}: mean without en {mean:.3f}; {each}", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
