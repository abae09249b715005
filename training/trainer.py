"""One training run: config in, checkpoint folder out. The loop is transformers' Trainer.

That gives resuming, mixed precision, accumulation and several GPUs (``torchrun -m xlt_serve.cli
train …``); what is ours is the objective.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    EvalPrediction,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from training import evaluate
from training import model as models
from training.config import Config
from training.data import languages, load_split
from training.data.files import read_rows
from training.data.tasks import to_examples
from training.method import Context, Objective, compose
from training.network import Classifier, Output
from training.types import Batch, Example, Loss
from xlt_serve.calibrate import negative_log_likelihood, softmax
from xlt_serve.errors import DataError, UsageError

RUN = "run.json"
RESUME = "resume"


def train(config: Config, out: Path) -> dict[str, Any]:
    """Train, or go on where a stopped run left off; a finished run is returned as it is."""
    if done := _finished(config, out):
        return done
    out.mkdir(parents=True, exist_ok=True)
    (out / RUN).write_text(json.dumps(config.described(), indent=2) + "\n", encoding="utf-8")
    set_seed(config.seed)
    train_set, dev_set = source_examples(config)
    labels = sorted({example.label for example in train_set})
    model = models.build(config.encoder, labels, config.train.max_length)
    model.encoding.check(dev_set)
    task = config.task
    context = Context(task.name, Path(task.data), task.source, config.seed)
    for method in config.methods:
        train_set = list(method.augment(train_set, context))
    context = dataclasses.replace(context, steps=_steps(config, len(train_set)))
    for method in config.methods:
        method.attach(model)
    batches = Batches(model, train_set, config.train.batch_size)
    for method in config.methods:
        method.prepare(model, batches, context)
    trainer = ObjectiveTrainer(
        model=Learner(model, compose(config.methods)),
        args=_arguments(config, out / RESUME),
        data_collator=lambda examples: tensors(model.encoding.batch(examples)),
        train_dataset=train_set,
        eval_dataset=dev_set,
        compute_metrics=dev_score,
        callbacks=[_Report()],
    )
    trainer.remove_callback(PrinterCallback)
    # Trainer seeds again from here on; a resume restores the generators of its checkpoint.
    trainer.train(resume_from_checkpoint=_resumable(out / RESUME))
    metrics = _metrics(config, trainer, model)
    if trainer.is_world_process_zero():
        description = models.Description(
            task=task.name,
            pair=train_set[0].pair is not None,
            labels=labels,
            source_language=task.source,
            max_length=model.encoding.max_length,
            config=config.described(),
            scores=metrics["languages"],
        )
        models.save(out, model, description)
        (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(out / RESUME, ignore_errors=True)
    return metrics


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


class Learner(torch.nn.Module):
    """Model and objective in one module, so that all of a step runs inside one forward.

    With several GPUs the forward of the wrapped module is what synchronises gradients; an
    objective that called parts of the model behind its back would train them apart.
    """

    def __init__(self, model: Classifier, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, **given: Any) -> Loss | Output:
        batch = Batch(**given)
        if self.training:
            return self.objective(self.model, batch)
        output: Output = self.model(batch)
        return output


class ObjectiveTrainer(Trainer):
    """Trainer over a Learner; logs the mean of every term by its name."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss_is_scaled_for_ga = False  # ours is the mean over the batch
        self._terms: dict[str, list[torch.Tensor]] = defaultdict(list)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        out = model(**inputs)
        if return_outputs:  # evaluation
            loss = torch.nn.functional.cross_entropy(out.logits, inputs["labels"])
            return loss, {"loss": loss, "logits": out.logits}
        if self.state.global_step == 0 and not self._terms:
            check_terms(out)
        for name, value in out.terms.items():
            self._terms[name].append(value.detach())
        return out.total

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            for name, values in self._terms.items():
                logs[f"term/{name}"] = float(torch.stack(values).mean())
            self._terms.clear()
        super().log(logs, start_time)

    def create_optimizer(self, *args: Any, **settings: Any) -> torch.optim.Optimizer:
        """Adam with weight decay on matrices; a parameter may ask for a multiple of the rate."""
        if self.optimizer is None:
            groups: dict[tuple[float, float], list[torch.nn.Parameter]] = defaultdict(list)
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    decay = self.args.weight_decay if parameter.ndim >= 2 else 0.0
                    groups[decay, getattr(parameter, "rate", 1.0)].append(parameter)
            self.optimizer = torch.optim.AdamW(
                [
                    {"params": chosen, "weight_decay": decay, "lr": rate * self.args.learning_rate}
                    for (decay, rate), chosen in groups.items()
                ]
            )
        return self.optimizer


class _Report(TrainerCallback):
    """A line for each epoch: the loss, its terms by name, the score on dev."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            terms = [f"{k[5:]} {v:.4f}" for k, v in logs.items() if k.startswith("term/")]
            said = " ".join([f"loss {logs['loss']:.4f}", *terms])
        elif "eval_score" in logs:
            said = f"dev accuracy {logs['eval_accuracy']:.3f} nll {logs['eval_nll']:.3f}"
        else:
            return
        print(f"epoch {logs['epoch']:.2f} step {state.global_step}: {said}", file=sys.stderr)


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


def source_examples(config: Config) -> tuple[list[Example], list[Example]]:
    """Train and dev examples that selection may look at."""
    task = config.task
    if task.name == "files":
        columns = {"text": task.text, "label": task.label, "pair": task.pair, "id": ""}
        return tuple(  # type: ignore[return-value]
            to_examples(read_rows(Path(file)), columns, task.source, file)
            for file in (task.train, task.dev)
        )
    train_set = load_split(task.name, task.data, "train", task.source)
    chosen = [task.source]
    if config.select == "all-dev":
        chosen = languages(task.name, task.data, "dev")
    dev_set = [e for language in chosen for e in load_split(task.name, task.data, "dev", language)]
    known = {example.label for example in train_set}
    dev_set = [example for example in dev_set if example.label in known]
    if not dev_set:
        raise DataError(
            task.data, f"has no dev example of {task.name} with a label of its train set"
        )
    return train_set, dev_set


def _arguments(config: Config, folder: Path) -> TrainingArguments:
    train = config.train
    return TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=train.batch_size,
        per_device_eval_batch_size=max(train.batch_size, 64),
        gradient_accumulation_steps=train.accumulate,
        num_train_epochs=train.epochs,
        max_steps=train.max_steps,
        learning_rate=train.learning_rate,
        warmup_steps=train.warm_up,
        weight_decay=train.weight_decay,
        max_grad_norm=train.clip,
        bf16=train.precision == "bf16",
        fp16=train.precision == "fp16",
        seed=config.seed,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="score",
        greater_is_better=True,
        logging_strategy="epoch",
        report_to="none",
        remove_unused_columns=False,
        label_names=["labels"],
        disable_tqdm=not sys.stderr.isatty(),
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _steps(config: Config, examples: int) -> int:
    """Optimiser steps of the run, for schedules that depend on it."""
    a_step = config.train.batch_size * config.train.accumulate * max(1, torch.cuda.device_count())
    planned = max(1, round(config.train.epochs * -(-examples // a_step)))
    return planned if config.train.max_steps < 0 else config.train.max_steps


def _metrics(config: Config, trainer: Trainer, model: Classifier) -> dict[str, Any]:
    best = trainer.state.best_metric
    out: dict[str, Any] = {
        "selected_by": config.select,
        "dev_score": best,
        "steps": trainer.state.global_step,
        "languages": {},
        "log": trainer.state.log_history,
    }
    if config.task.name != "files":
        predict = evaluate.torch_predictor(model)
        progress = sys.stderr.isatty()
        scores = evaluate.by_language(
            predict, config.task.name, config.task.data, "dev", progress=progress
        )
        out["languages"] = {language: vars(s) for language, s in scores.items()}
        out["summary"] = evaluate.summary(scores, config.task.source)
    return out


def _finished(config: Config, out: Path) -> dict[str, Any] | None:
    """The metrics of a run that has ended; an error if ``out`` holds another config's run."""
    if not out.exists() or not any(out.iterdir()):
        return None
    if not (out / RUN).is_file():
        raise UsageError(out, "is not empty and holds no run", "give an empty or new --out")
    before = json.loads((out / RUN).read_text(encoding="utf-8"))
    now = json.loads(json.dumps(config.described()))
    if before != now:
        changed = ", ".join(sorted(key for key in now if now[key] != before.get(key)))
        raise UsageError(
            out, f"holds a run with another config ({changed} differ)", "give another --out"
        )
    if (out / "metrics.json").is_file():
        metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
        return metrics
    return None


def _resumable(folder: Path) -> str | None:
    """The last checkpoint that was written to its end; a half-written one is removed."""
    while folder.is_dir() and (last := get_last_checkpoint(str(folder))):
        if (Path(last) / "trainer_state.json").is_file():
            return last
        shutil.rmtree(last)
    return None
