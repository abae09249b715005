"""One run of distillation: the student, its optimisers, and the place in the stream of blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig

from xlt_training.encoders import batches, encoder_folder, examples, initial, teacher
from xlt_training.encoders.averaging import WeightAverage
from xlt_training.encoders.batches import DistillBatch
from xlt_training.encoders.examples import Material
from xlt_training.encoders.row_adam import RowAdam, clip
from xlt_training.encoders.student import Goals, Student, losses
from xlt_training.encoders.targets import Encode

BETAS = (0.9, 0.98)


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
        self.worker = 0
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
            for name, value in encoder_folder.read(self.begin, self.student).items():
                setattr(self, name, value)
            self.block += 1  # the batch within it is not known: begin with a fresh one
            self.warm_from = self.step  # new optimiser moments want a new warm-up
            print(f"going on from the weights of {self.begin}, step {self.step}", flush=True)
        else:
            self.set_embeddings()
        self.average.start()

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

    def share(self) -> None:
        """Put the weights and the moments where processes started from this one find them too."""
        self.student.share_memory()
        for parameter in self.dense:
            state = self.optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros(())
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            for value in state.values():
                value.share_memory_()
        for value in self.rows.state_dict().values():
            value.share_memory_()

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

    def save_encoder(self, folder: Path, averaged: bool = False) -> None:
        student = self.average.copy_of(self.student) if averaged else self.student
        progress = {name: getattr(self, name) for name in encoder_folder.PROGRESS}
        encoder_folder.write(folder, student, self.tokenizer, progress)

    # -- a step -----------------------------------------------------------------------------------

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
        if self.worker == 0:
            self.average.update()
        return {name: float(value.detach()) for name, value in terms.items()}

    def goals_of(self, batch: DistillBatch) -> Goals:
        noise = np.random.default_rng((self.settings["seed"], self.step, self.worker))
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
