"""Make the small multilingual encoder: ``python -m xlt_training.encoders.distill --data DIR --minutes N``.

A run may be stopped at any time; the next one goes on from the last checkpoint in ``--work``, or,
where there is none, from the weights committed in ``--out``. The learning rate is constant but for
a warm-up and, in the last part of each run, a cool-down to zero, after which the encoder is written
to ``--out``; the next run goes on from before the cool-down.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig

from xlt_training.encoders import corpus, examples, initial, teacher, vocabulary
from xlt_training.encoders.student import IGNORED, Student, losses
from xlt_training.loop import pretrained

HERE = Path(__file__).parent


@dataclass
class Batch:
    input_ids: Tensor
    attention_mask: Tensor
    words: Tensor
    aims: Tensor


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=HERE / "small.toml")
    parser.add_argument("--work", type=Path, default=Path("build/encoder"))
    parser.add_argument("--out", type=Path, default=HERE / "small")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--cool-down", type=float, default=0.2, help="share of the run")
    parser.add_argument(
        "--research", action="store_true", help="use XNLI text too (non-commercial)"
    )
    options = parser.parse_args(arguments)
    config = tomllib.loads(options.config.read_text())
    material = examples.gather(options.data, options.work, options.research)
    tokenizer = make_tokenizer(material, options.work, config["model"], options.out)
    print(f"{len(tokenizer)} pieces, {len(material.targets)} texts for the teacher", flush=True)
    targets = teacher.encode_cached(material.targets, options.work / "teacher", "targets")
    run = Run(config, options.work, options.out, tokenizer, material, targets)
    run.start()
    run.train(options.minutes * 60, options.cool_down)


def make_tokenizer(
    material: examples.Material, work: Path, model: dict[str, Any], committed: Path
) -> PreTrainedTokenizerFast:
    """The committed tokenizer, else a new one from the material."""
    if (committed / "tokenizer.json").exists():
        found: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(committed)
        return found
    pieces = work / "vocabulary" / "pieces.model"
    if not pieces.exists():
        texts = {
            language: vocabulary.sample_text(
                [
                    corpus.Sentence(language, text)
                    for kind in ("own", "masked", "translation")
                    for text, _, _ in pools.get(kind, [])
                ],
                [],
                per_language=16_000,
                seed=0,
            )
            for language, pools in material.pools.items()
        }
        untaught = [text for language in examples.UNTAUGHT_LANGUAGES for text in texts[language]]
        vocabulary.train_pieces(untaught, model["vocabulary"] // 2, work / "vocabulary")
        known = teacher.pieces(teacher.fetch(work / "teacher"))
        vocabulary.merge_pieces(pieces, known, texts, model["vocabulary"] - 1)
    return vocabulary.tokenizer_from_pieces(pieces, model["max_length"])


class Run:
    """One training run: a student, its optimiser, and where in the stream of blocks it stands."""

    def __init__(
        self,
        config: dict[str, Any],
        work: Path,
        out: Path,
        tokenizer: PreTrainedTokenizerFast,
        material: examples.Material,
        targets: np.ndarray,
    ) -> None:
        self.settings, self.weights = config["train"], config["weights"]
        self.work, self.out = work, out
        self.tokenizer, self.material, self.targets = tokenizer, material, targets
        torch.manual_seed(self.settings["seed"])
        self.student = Student(
            encoder_config(config["model"], len(tokenizer)),
            teacher.WIDTH,
            bfloat16=self.settings.get("bfloat16", False),
        )
        decayed = [p for p in self.student.parameters() if p.ndim >= 2]
        plain = [p for p in self.student.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": self.settings["weight_decay"]},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=self.settings["learning_rate"],
            betas=(0.9, 0.98),
            fused=True,
        )
        self.block, self.batch, self.step, self.warm_from = 0, 0, 0, 0
        self.tokens = 0
        self.seconds = 0.0

    # -- where to begin ---------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.work / "state.pt"

    def start(self) -> None:
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.student.load_state_dict(state["student"])
            self.optimizer.load_state_dict(state["optimizer"])
            for name, value in state["position"].items():
                setattr(self, name, value)
            print(f"resuming at step {self.step} from {self.checkpoint}", flush=True)
        elif (self.out / "model.safetensors").exists():
            weights = load_file(self.out / "model.safetensors")
            self.student.language_model.load_state_dict(
                {name: value.float() for name, value in weights.items()}, strict=False
            )
            self.student.language_model.tie_weights()
            projection = load_file(self.out / "projection.safetensors")
            self.student.projection.load_state_dict(
                {name: value.float() for name, value in projection.items()}
            )
            position = json.loads((self.out / "progress.json").read_text())
            for name in ("block", "step", "tokens", "seconds"):
                setattr(self, name, position[name])
            self.block += 1  # the batch within it is not known: begin with a fresh one
            self.warm_from = self.step  # new optimiser moments want a new warm-up
            print(f"going on from the committed weights at step {self.step}", flush=True)
        else:
            self.set_embeddings()

    def set_embeddings(self) -> None:
        path = teacher.fetch(self.work / "teacher")
        vectors, counts = initial.piece_vectors(
            self.tokenizer, self.material, teacher.pieces(path), teacher.table(path)
        )
        words = self.student.language_model.roberta.embeddings.word_embeddings.weight
        reduced = initial.reduce_width(vectors, counts, words.shape[1], deviation=0.05)
        with torch.no_grad():
            words.copy_(torch.from_numpy(reduced))
            words[self.tokenizer.pad_token_id].zero_()

    def save_checkpoint(self) -> None:
        names = ("block", "batch", "step", "warm_from", "tokens", "seconds")
        state = {
            "student": self.student.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": {name: getattr(self, name) for name in names},
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        part.rename(self.checkpoint)

    def save_encoder(self, folder: Path) -> None:
        """What ships: fp16 weights with the language-model head, the projection, tokenizer, progress."""
        folder.mkdir(parents=True, exist_ok=True)
        copy.deepcopy(self.student.language_model).half().save_pretrained(folder)
        described = json.loads((folder / "config.json").read_text())
        # What fine-tuning wants; distillation itself runs without dropout.
        described |= {
            "dtype": "float16",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
        }
        (folder / "config.json").write_text(json.dumps(described, indent=2, sort_keys=True) + "\n")
        projection = self.student.projection.state_dict()
        save_file(
            {name: value.half().contiguous() for name, value in projection.items()},
            folder / "projection.safetensors",
        )
        pretrained.save_tokenizer(self.tokenizer, folder)
        names = ("block", "step", "tokens", "seconds")
        progress = {name: getattr(self, name) for name in names}
        (folder / "progress.json").write_text(json.dumps(progress, indent=2) + "\n")

    # -- the loop ---------------------------------------------------------------------------------

    def train(self, limit: float, cool_share: float) -> None:
        begun = last_saved = last_said = time.monotonic()
        already = self.seconds
        cooling: float | None = None
        sums: dict[str, list[float]] = defaultdict(list)
        self.student.train()
        while True:
            batches = self.batches(self.block)
            for number in range(self.batch, len(batches)):
                elapsed = time.monotonic() - begun
                if cooling is None and elapsed > limit * (1 - cool_share):
                    self.save_checkpoint()
                    cooling = elapsed
                if elapsed > limit:
                    self.save_encoder(self.out)
                    print(f"written to {self.out} at step {self.step}", flush=True)
                    return
                factor = min(1.0, (self.step - self.warm_from + 1) / self.settings["warm_up"])
                if cooling is not None:
                    factor *= max(0.0, (limit - elapsed) / max(limit - cooling, 1e-9))
                for name, value in self.one_step(batches[number], factor).items():
                    sums[name].append(value)
                self.batch = number + 1
                self.seconds = already + time.monotonic() - begun
                if time.monotonic() - last_said > 60:
                    last_said = time.monotonic()
                    said = " ".join(f"{k} {sum(v) / len(v):.3f}" for k, v in sorted(sums.items()))
                    rate = self.tokens / self.seconds
                    print(
                        f"step {self.step} {self.seconds / 60:.0f} min {rate:.0f} tok/s {said}",
                        flush=True,
                    )
                    sums.clear()
                if cooling is None and time.monotonic() - last_saved > 600:
                    last_saved = time.monotonic()
                    self.save_checkpoint()
            self.block, self.batch = self.block + 1, 0

    def one_step(self, batch: Batch, factor: float) -> dict[str, float]:
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings["learning_rate"] * factor
        rows = batch.aims.clamp(min=0).numpy()
        goal = torch.from_numpy(self.targets[rows].astype(np.float32))
        chosen = np.random.default_rng((self.settings["seed"], self.step)).integers(
            len(self.targets), size=self.settings["negatives"]
        )
        negatives = torch.from_numpy(self.targets[np.sort(chosen)].astype(np.float32))
        terms = losses(
            self.student,
            batch.input_ids,
            batch.attention_mask,
            batch.words,
            batch.aims,
            goal,
            negatives,
            self.settings["temperature"],
        )
        total = torch.stack([self.weights[name] * value for name, value in terms.items()]).sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.student.parameters(), self.settings["clip"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += int(batch.attention_mask.sum())
        return {name: float(value.detach()) for name, value in terms.items()}

    def batches(self, block: int) -> list[Batch]:
        """The batches of a block: a pure function of the material, the settings and its number."""
        settings = self.settings
        drawn = examples.draw(self.material, settings["block"], settings["seed"], block)
        encoded = self.tokenizer(
            [e.text for e in drawn],
            truncation=True,
            max_length=settings["longest"],
        )["input_ids"]
        both = [i for i, e in enumerate(drawn) if e.second]
        if both:
            paired = self.tokenizer(
                [drawn[i].text for i in both],
                [drawn[i].second for i in both],
                truncation=True,
                max_length=settings["longest"],
            )["input_ids"]
            for i, ids in zip(both, paired, strict=True):
                encoded[i] = ids
        generator = random.Random(f"{settings['seed']}/{block}/order")
        order = sorted(range(len(drawn)), key=lambda i: len(encoded[i]) + generator.random())
        groups: list[list[int]] = []
        for i in order:
            if groups and (len(groups[-1]) + 1) * len(encoded[i]) <= settings["tokens"]:
                groups[-1].append(i)
            else:
                groups.append([i])
        generator.shuffle(groups)
        noise = np.random.default_rng((settings["seed"], block))
        return [self.collate([(encoded[i], drawn[i]) for i in group], noise) for group in groups]

    def collate(
        self, rows: list[tuple[list[int], examples.Example]], noise: np.random.Generator
    ) -> Batch:
        width = max(len(ids) for ids, _ in rows)
        input_ids = np.full((len(rows), width), self.tokenizer.pad_token_id, dtype=np.int64)
        words = np.full_like(input_ids, IGNORED)
        for row, (ids, example) in enumerate(rows):
            input_ids[row, : len(ids)] = ids
            if example.masked:
                hide(
                    input_ids[row, : len(ids)],
                    words[row, : len(ids)],
                    self.tokenizer,
                    self.settings["mask"],
                    noise,
                )
        tensor = torch.from_numpy(input_ids)
        return Batch(
            input_ids=tensor,
            attention_mask=(tensor != self.tokenizer.pad_token_id).long(),
            words=torch.from_numpy(words),
            aims=torch.tensor([example.target for _, example in rows]),
        )


def hide(
    ids: np.ndarray,
    words: np.ndarray,
    tokenizer: PreTrainedTokenizerFast,
    share: float,
    noise: np.random.Generator,
) -> None:
    """BERT's masking, in place: of ``share`` of the pieces 80 % masked, 10 % random, 10 % kept."""
    chosen = (noise.random(len(ids)) < share) & (ids > 3)
    words[chosen] = ids[chosen]
    kind = noise.random(len(ids))
    replaced = noise.integers(4, len(tokenizer) - 1, size=len(ids))
    ids[chosen & (kind < 0.8)] = tokenizer.mask_token_id
    other = chosen & (kind >= 0.8) & (kind < 0.9)
    ids[other] = replaced[other]


def encoder_config(model: dict[str, Any], pieces: int) -> XLMRobertaConfig:
    return XLMRobertaConfig(
        vocab_size=pieces,
        hidden_size=model["width"],
        num_hidden_layers=model["layers"],
        num_attention_heads=model["heads"],
        intermediate_size=4 * model["width"],
        max_position_embeddings=model["max_length"] + 2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )


if __name__ == "__main__":
    main()
