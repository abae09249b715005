"""The training step: a model and its objective in one module, under transformers' Trainer."""

from __future__ import annotations

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import EvalPrediction, Trainer, TrainerCallback
from transformers.trainer_pt_utils import LengthGroupedSampler

from xlt_serve.calibration import negative_log_likelihood, softmax
from xlt_serve.errors import UsageError
from xlt_training.loop.method import Method, compose
from xlt_training.loop.network import Classifier
from xlt_training.loop.types import Batch, Example, Loss, Output


def tensors(batch: Batch) -> dict[str, Any]:
    """A batch as the dict that Trainer hands around."""
    return {
        f.name: v for f in dataclasses.fields(batch) if (v := getattr(batch, f.name)) is not None
    }


class Batches(Sequence[Batch]):
    """The training examples in order, batch by batch, made when they are asked for."""

    def __init__(self, model: Classifier, examples: list[Example], size: int) -> None:
        self.model, self.examples, self.size = model, examples, size

    def __len__(self) -> int:
        return -(-len(self.examples) // self.size)

    def __getitem__(self, number: int) -> Batch:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.model.batch(self.examples[number * self.size : (number + 1) * self.size])


def rows_of(batch: Batch, rows: list[int]) -> Batch:
    """Some rows of a batch, padded as they were."""
    chosen = {name: v[rows] for name, v in tensors(batch).items() if isinstance(v, torch.Tensor)}
    return dataclasses.replace(batch, **chosen, examples=[batch.examples[row] for row in rows])


class Learner(torch.nn.Module):
    """Model and objective in one module, so that all of a step runs inside one forward.

    With several GPUs the forward of the wrapped module is what synchronises gradients; an
    objective that called parts of the model behind its back would train them apart.

    ``source``: the language in which a method may predict in its own way. The dev texts of others,
    which ``select = "all-dev"`` looks at, have no translation to be paired with: a plain pass.
    """

    def __init__(self, model: Classifier, methods: Sequence[Method], source: str) -> None:
        super().__init__()
        self.model = model
        self.methods = list(methods)
        self.source = source
        self.objective = compose(methods)

    def forward(self, **given: Any) -> Loss | Output:
        batch = Batch(**given)
        if self.training:
            return self.objective(self.model, batch)
        own = [row for row, e in enumerate(batch.examples) if e.language == self.source]
        predicted = self.predicted(rows_of(batch, own)) if own else None
        if predicted is not None and len(own) == len(batch.examples):
            return predicted
        output: Output = self.model(batch)
        if predicted is not None:
            output.logits[own] = predicted.logits.to(output.logits.dtype)
        return output

    def predicted(self, batch: Batch) -> Output | None:
        """By the first method that predicts in its own way, if there is one."""
        for method in self.methods:
            if (out := method.predict(self.model, batch)) is not None:
                return out
        return None


class Grouped(LengthGroupedSampler):
    """Texts of similar length together; the order hangs on the seed and the epoch alone, so that a run
    that resumes in the middle of one goes on with the same."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int) -> None:
        super().__init__(batch_size, lengths=lengths, generator=torch.Generator())
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator.manual_seed(1000 * self.seed + self.epoch)
        return iter(super().__iter__())


class ObjectiveTrainer(Trainer):
    """Trainer over a Learner; logs the mean of every term by its name."""

    def __init__(self, *, group_by_length: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.group_by_length = group_by_length
        self.loss_is_scaled_for_ga = False  # ours is the mean over the batch
        self.terms: dict[str, list[torch.Tensor]] = defaultdict(list)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        self.accelerator.unwrap_model(model).model.step = self.state.global_step
        out = model(**inputs)
        if return_outputs:  # evaluation
            loss = torch.nn.functional.cross_entropy(out.logits, inputs["labels"])
            return loss, {"loss": loss, "logits": out.logits}
        if self.state.global_step == 0 and not self.terms:
            check_terms(out)
        for name, value in out.terms.items():
            self.terms[name].append(value.detach())
        for name, figure in out.figures.items():
            self.terms[f"figure/{name}"].append(torch.tensor(figure))
        return out.total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            for name, values in self.terms.items():
                key = name if name.startswith("figure/") else f"term/{name}"
                logs[key] = float(torch.stack(values).mean())
            self.terms.clear()
        super().log(logs, start_time)

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler[int] | None:
        """Trainer's own grouping wants ``input_ids``, which examples have only in their batch."""
        examples: Any = self.train_dataset if train_dataset is None else train_dataset
        if not self.group_by_length:
            return super()._get_train_sampler(train_dataset)
        lengths = [len(example.text) + len(example.pair or "") for example in examples]
        size = self.args.train_batch_size * self.args.gradient_accumulation_steps
        return Grouped(size, lengths, self.args.seed)

    def create_optimizer(self, *args: Any, **settings: Any) -> torch.optim.Optimizer:
        """Adam with weight decay on matrices; a parameter may ask for a multiple of the rate."""
        if self.optimizer is None:
            groups: dict[tuple[float, float], list[torch.nn.Parameter]] = defaultdict(list)
            assert self.model is not None
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    decay = self.args.weight_decay if parameter.ndim >= 2 else 0.0
                    groups[decay, getattr(parameter, "rate", 1.0)].append(parameter)
            self.optimizer = torch.optim.AdamW(
                [
                    {"params": chosen, "weight_decay": decay, "lr": rate * self.args.learning_rate}
                    for (decay, rate), chosen in groups.items()
                ],
                fused=True,
            )
        return self.optimizer


class Report(TrainerCallback):
    """A line for each epoch: the loss, its terms by name, the score on dev. ``stage``: which one it is,
    where there are several; each counts its epochs from the start."""

    def __init__(self, stage: str = "") -> None:
        self.before = f"{stage}, " if stage else ""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            shown = ("term/", "figure/")
            terms = [
                f"{k.partition('/')[2]} {v:.4f}" for k, v in logs.items() if k.startswith(shown)
            ]
            said = " ".join([f"loss {logs['loss']:.4f}", *terms])
        elif "eval_score" in logs:
            said = f"dev accuracy {logs['eval_accuracy']:.3f} nll {logs['eval_nll']:.3f}"
        else:
            return
        place = f"{self.before}epoch {logs['epoch']:.2f} step {state.global_step}"
        tqdm.write(f"{place}: {said}", file=sys.stderr)  # above the bar, where there is one


def check_terms(loss: Loss) -> None:
    """A term that can't be learnt from would be a silent mistake in the config or the method."""
    for name, value in loss.terms.items():
        if not value.requires_grad:
            raise UsageError(
                name, "is a loss term without a gradient", "take its method out of the config"
            )


def dev_score(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy, with the likelihood to decide between equals (dev sets are small)."""
    values, truth = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
    accuracy = float((values.argmax(axis=1) == truth).mean())
    likelihood = negative_log_likelihood(softmax(values), truth)
    return {"accuracy": accuracy, "nll": likelihood, "score": accuracy - 1e-4 * likelihood}
