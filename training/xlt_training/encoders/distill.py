"""Make the small multilingual encoder: ``python -m xlt_training.encoders.distill --data DIR --minutes N``.

A run may be stopped (SIGTERM) or paused (SIGSTOP) at any time; the next one goes on from the last
checkpoint in ``--work``, or, where there is none, from the weights in ``--begin``. The learning rate
is constant but for a warm-up and, in the last part of each run, a cool-down to zero, after which the
encoder is written to ``--out``; the next run goes on from before the cool-down. Every ten minutes
the average of the weights is written to ``snapshot`` in ``--work``.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import signal
import sys
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig

from xlt_training.encoders import batches, corpus, examples, initial, material, teacher, vocabulary
from xlt_training.encoders.averaging import WeightAverage
from xlt_training.encoders.batches import DistillBatch
from xlt_training.encoders.examples import Material
from xlt_training.encoders.row_adam import RowAdam, clip
from xlt_training.encoders.student import Goals, Student, losses
from xlt_training.encoders.targets import Encode, TargetStore, teacher_in
from xlt_training.loop import pretrained

HERE = Path(__file__).parent
BETAS = (0.9, 0.98)
LONGEST_STEP = 20.0  # seconds that a step counts at most: a paused run does not age
# Large tensors are handed back to the system after every use, and fetched again page by page, unless
# the C library is told otherwise before it starts. A step takes a fifth less time so.
ALLOCATOR = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--config", type=Path, default=HERE / "small.toml")
    parser.add_argument("--work", type=Path, default=Path("build/encoder"))
    parser.add_argument("--out", type=Path, default=HERE / "small")
    parser.add_argument("--begin", type=Path, default=HERE / "small", help="weights to go on from")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--cool-down", type=float, default=0.2, help="share of the run")
    options = parser.parse_args(arguments)
    config = tomllib.loads(options.config.read_text())
    options.work.mkdir(parents=True, exist_ok=True)
    pools = material.gathered(options.data, options.work)
    tokenizer = make_tokenizer(pools, options.work, config["model"], options.begin)
    print(f"{len(tokenizer)} pieces, {len(pools.targets)} texts for the teacher", flush=True)
    vectors = TargetStore(options.work / "targets", teacher_in(options.work / "teacher"))
    run = Distillation(config, options.work, options.begin, tokenizer, pools, vectors)
    run.start()
    signal.signal(signal.SIGTERM, run.stop)
    if run.train(options.minutes * 60, options.cool_down):
        run.save_encoder(options.out)
        print(f"written to {options.out} at step {run.step}", flush=True)


def make_tokenizer(
    pools: Material, work: Path, model: dict[str, Any], committed: Path
) -> PreTrainedTokenizerFast:
    """The committed tokenizer, else a new one from the pools."""
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
                    for text, _, _ in kinds.get(kind, [])
                ],
                [],
                per_language=16_000,
                seed=0,
            )
            for language, kinds in pools.pools.items()
        }
        untaught = [text for language in examples.UNTAUGHT_LANGUAGES for text in texts[language]]
        vocabulary.train_pieces(untaught, model["vocabulary"] // 2, work / "vocabulary")
        known = teacher.pieces(teacher.fetch(work / "teacher"))
        vocabulary.merge_pieces(pieces, known, texts, model["vocabulary"] - 1)
    return vocabulary.tokenizer_from_pieces(pieces, model["max_length"])


class Distillation:
    """One training run: a student, its optimiser, and where in the stream of blocks it stands."""

    def __init__(
        self,
        config: dict[str, Any],
        work: Path,
        begin: Path,
        tokenizer: PreTrainedTokenizerFast,
        pools: Material,
        vectors: Encode,
    ) -> None:
        self.settings, self.weights = config["train"], config["weights"]
        self.tasks: dict[str, float] = config.get("tasks", {})
        self.work, self.begin = work, begin
        self.tokenizer, self.material, self.vectors = tokenizer, pools, vectors
        torch.manual_seed(self.settings["seed"])
        self.student = Student(
            encoder_config(config["model"], len(tokenizer)),
            teacher.WIDTH,
            bfloat16=self.settings.get("bfloat16", False),
        )
        table, decay = self.student.table, self.settings["weight_decay"]
        self.dense = [p for p in self.student.parameters() if p is not table]
        groups = [
            {"params": [p for p in self.dense if p.ndim >= 2], "weight_decay": decay},
            {"params": [p for p in self.dense if p.ndim < 2], "weight_decay": 0.0},
        ]
        rate = self.settings["learning_rate"]
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=True)
        self.rows = RowAdam(table, BETAS, decay)
        self.average = WeightAverage(self.student, self.settings["average"], every=10)
        self.block, self.batch, self.step, self.warm_from = 0, 0, 0, 0
        self.tokens = 0
        self.seconds = 0.0
        self.stopping = False
        self.goals = np.zeros((0, teacher.WIDTH), dtype=np.float32)

    # -- where to begin ---------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.work / "state.pt"

    def start(self) -> None:
        if self.checkpoint.exists():
            state = torch.load(self.checkpoint, weights_only=True)
            self.student.load_state_dict(state["student"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.rows.load_state_dict(state["rows"])
            self.average.load_state_dict(state["average"])
            for name, value in state["position"].items():
                setattr(self, name, value)
            print(f"resuming at step {self.step} from {self.checkpoint}", flush=True)
        elif (self.begin / "model.safetensors").exists():
            self.load_encoder(self.begin)
            print(f"going on from the weights of {self.begin}, step {self.step}", flush=True)
        else:
            self.set_embeddings()
        self.average.start()

    def load_encoder(self, folder: Path) -> None:
        """Weights of an earlier run, without its optimiser."""
        weights = load_file(folder / "model.safetensors")
        self.student.language_model.load_state_dict(
            {name: value.float() for name, value in weights.items()}, strict=False
        )
        self.student.language_model.tie_weights()
        projection = load_file(folder / "projection.safetensors")
        self.student.projection.load_state_dict(
            {name: value.float() for name, value in projection.items()}
        )
        position = json.loads((folder / "progress.json").read_text())
        for name in ("block", "step", "tokens", "seconds"):
            setattr(self, name, position[name])
        self.block += 1  # the batch within it is not known: begin with a fresh one
        self.warm_from = self.step  # new optimiser moments want a new warm-up

    def set_embeddings(self) -> None:
        path = teacher.fetch(self.work / "teacher")
        vectors, counts = initial.piece_vectors(
            self.tokenizer, self.material, teacher.pieces(path), teacher.table(path)
        )
        words = self.student.table
        reduced = initial.reduce_width(vectors, counts, words.shape[1], deviation=0.05)
        with torch.no_grad():
            words.copy_(torch.from_numpy(reduced))
            words[self.tokenizer.pad_token_id].zero_()

    def save_checkpoint(self) -> None:
        names = ("block", "batch", "step", "warm_from", "tokens", "seconds")
        state = {
            "student": self.student.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rows": self.rows.state_dict(),
            "average": self.average.state_dict(),
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

    def save_snapshot(self) -> None:
        """The average of the weights as an encoder, put in place in one go."""
        folder = self.work / "snapshot"
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with self.average.applied():
            self.save_encoder(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)

    # -- the loop ---------------------------------------------------------------------------------

    def stop(self, *_: object) -> None:
        """As a handler of SIGTERM: save after the step that runs, and end."""
        self.stopping = True

    def train(self, limit: float, cool_share: float) -> bool:
        """Until ``limit`` seconds have been spent; False where it was stopped before."""
        begun, last_saved, last_said = self.seconds, self.seconds, self.seconds
        cooling: float | None = None
        sums: dict[str, list[float]] = defaultdict(list)
        said_tokens = self.tokens
        self.student.train()
        while True:
            clock = time.monotonic()
            made = self.batches(self.block)
            self.seconds += time.monotonic() - clock
            for number in range(self.batch, len(made)):
                spent = self.seconds - begun
                if cooling is None and cool_share and spent >= limit * (1 - cool_share):
                    self.save_checkpoint()
                    cooling = spent
                if self.stopping or spent > limit:
                    if cooling is None:
                        self.save_checkpoint()
                        self.save_snapshot()
                    return not self.stopping
                factor = min(1.0, (self.step - self.warm_from + 1) / self.settings["warm_up"])
                if cooling is not None:
                    factor *= max(0.0, (limit - spent) / max(limit - cooling, 1e-9))
                clock = time.monotonic()
                for name, value in self.one_step(made[number], factor).items():
                    sums[name].append(value)
                self.batch = number + 1
                self.seconds += min(time.monotonic() - clock, LONGEST_STEP)
                if self.seconds - last_said > 60:
                    rate = (self.tokens - said_tokens) / (self.seconds - last_said)
                    self.say(sums, rate)
                    last_said, said_tokens = self.seconds, self.tokens
                    sums.clear()
                if cooling is None and self.seconds - last_saved > 600:
                    last_saved = self.seconds
                    self.save_checkpoint()
                    self.save_snapshot()
            self.block, self.batch = self.block + 1, 0

    def say(self, sums: dict[str, list[float]], rate: float) -> None:
        terms = " ".join(f"{k} {sum(v) / len(v):.3f}" for k, v in sorted(sums.items()))
        place = f"step {self.step} {self.tokens / 1e6:.1f} M tokens"
        print(f"{place} {self.seconds / 60:.0f} min {rate:.0f} tok/s {terms}", flush=True)

    def one_step(self, batch: DistillBatch, factor: float) -> dict[str, float]:
        rate = self.settings["learning_rate"] * factor
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        terms = losses(
            self.student,
            batch.input_ids,
            batch.attention_mask,
            batch.words,
            batch.aims,
            batch.labels,
            self.goals_of(batch),
            self.settings["temperature"],
        )
        total = torch.stack([self.weights[name] * value for name, value in terms.items()]).sum()
        total.backward()
        self.update(rate)
        self.step += 1
        self.tokens += int(batch.attention_mask.sum())
        self.average.update(self.step)
        return {name: float(value.detach()) for name, value in terms.items()}

    def goals_of(self, batch: DistillBatch) -> Goals:
        noise = np.random.default_rng((self.settings["seed"], self.step))
        others = noise.integers(len(self.goals), size=self.settings["negatives"])
        pieces = np.unique(noise.integers(4, len(self.tokenizer), size=self.settings["pieces"]))
        return Goals(
            teacher=torch.from_numpy(self.goals[batch.aims.clamp(min=0).numpy()]),
            negatives=torch.from_numpy(self.goals[others]),
            pieces=torch.from_numpy(pieces),
        )

    def update(self, rate: float) -> None:
        """Clip all gradients together, then step: the table by rows, the rest as usual."""
        table = self.student.table
        assert table.grad is not None
        sparse = table.grad.coalesce()
        rows, values = sparse.indices()[0], sparse.values()
        values[rows == self.tokenizer.pad_token_id] = 0
        clip([p.grad for p in self.dense if p.grad is not None], values, self.settings["clip"])
        self.rows.step(rows, values, rate)
        table.grad = None
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def batches(self, block: int) -> list[DistillBatch]:
        """The batches of a block, and in ``goals`` the teacher's vectors that they aim at: a pure
        function of the material, the settings and its number."""
        settings = self.settings
        drawn = examples.draw(self.material, settings["block"], settings["seed"], block, self.tasks)
        made = batches.make(drawn, self.tokenizer, settings, block)
        wanted = sorted({example.target for example in drawn if example.target >= 0})
        found = self.vectors([self.material.targets[number] for number in wanted])
        self.goals = found.astype(np.float32)
        place = np.full(len(self.material.targets) + 1, -1)  # the last one: of no target
        place[wanted] = np.arange(len(wanted))
        for batch in made:
            batch.aims = torch.from_numpy(place[batch.aims.numpy()])
        return made


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
    if "GLIBC_TUNABLES" not in os.environ and sys.platform == "linux":
        os.environ["GLIBC_TUNABLES"] = ALLOCATOR
        os.execv(
            sys.executable, [sys.executable, "-m", "xlt_training.encoders.distill", *sys.argv[1:]]
        )
    main()
