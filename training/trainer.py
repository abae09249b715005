"""One training run: config in, checkpoint folder out. The loop is transformers' Trainer.

That gives resuming, mixed precision, accumulation and several GPUs (``torchrun -m xlt_serve.cli
train …``); what is ours is the objective.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    PrinterCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from training import evaluate
from training import model as models
from training.config import Config, Stage, TrainConfig
from training.data import languages, load_split
from training.data.files import read_rows
from training.data.tasks import to_examples
from training.learner import Batches, Learner, ObjectiveTrainer, Report, dev_score, tensors
from training.method import Context, Method, compose
from training.network import Classifier
from training.report import draw, loggers
from training.types import Example
from xlt_serve.errors import DataError, UsageError

RUN = "run.json"
RESUME = "resume"


def train(config: Config, out: Path) -> dict[str, Any]:
    """Train, or go on where a stopped run left off; a finished run is returned as it is."""
    if done := _finished(config, out):
        return done
    out.mkdir(parents=True, exist_ok=True)
    (out / RUN).write_text(json.dumps(config.described(), indent=2) + "\n", encoding="utf-8")
    source_set, dev_set = source_examples(config)
    labels = sorted({example.label for example in source_set})
    set_seed(config.seed)
    most = max(stage.train.max_length for stage in config.stages)
    model = models.build(config.encoder, labels, most)
    model.encoding.check(dev_set)
    attached: set[type[Method]] = set()
    log: list[dict[str, Any]] = []
    for number, stage in enumerate(config.stages):
        for method in stage.methods:
            if type(method) not in attached:
                attached.add(type(method))
                method.attach(model)
        finished = out / RESUME / f"stage-{number}.safetensors"
        if finished.is_file():
            model.load_state_dict(load_file(finished))
            log += json.loads(finished.with_suffix(".json").read_text())
            continue
        history = run_stage(config, stage, number, model, source_set, dev_set, out / RESUME)
        log += history
        if is_first_process():
            finished.with_suffix(".json").write_text(json.dumps(history))
            state = {name: value.contiguous() for name, value in model.state_dict().items()}
            save_file(state, finished.with_suffix(".part"))
            finished.with_suffix(".part").rename(finished)
    metrics = _metrics(config, log, model)
    if is_first_process():
        description = models.Description(
            task=config.task.name,
            pair=source_set[0].pair is not None,
            labels=labels,
            source_language=config.task.source,
            max_length=model.encoding.max_length,
            config=config.described(),
            scores=metrics["languages"],
        )
        models.save(out, model, description)
        draw(log, out / "curves.png")
        (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(out / RESUME, ignore_errors=True)
    return metrics


def run_stage(
    config: Config,
    stage: Stage,
    number: int,
    model: Classifier,
    source_set: list[Example],
    dev_set: list[Example],
    folder: Path,
) -> list[dict[str, Any]]:
    """Train ``model`` through one stage, or the rest of it; its best state on dev is kept.

    Returns the log. Everything random hangs on the seed and the stage's number.
    """
    task = config.task
    context = Context(task.name, Path(task.data), task.source, config.seed)
    train_set = source_set
    for method in stage.methods:
        train_set = list(method.augment(train_set, context))
    context = dataclasses.replace(context, steps=_steps(stage.train, len(train_set)))
    model.requires_grad_(True)
    model.step = 0
    set_seed(config.seed + number)
    batches = Batches(model, train_set, stage.train.batch_size)
    for method in stage.methods:
        method.prepare(model, batches, context)
    trainer = ObjectiveTrainer(
        model=Learner(model, compose(stage.methods)),
        args=_arguments(config, stage.train, folder / f"stage-{number}"),
        data_collator=lambda examples: tensors(model.encoding.batch(examples)),
        train_dataset=train_set,
        eval_dataset=dev_set,
        compute_metrics=dev_score,
        callbacks=[Report(), *loggers(folder.parent / "logs")],
    )
    trainer.remove_callback(PrinterCallback)
    # Trainer seeds again from here on; a resume restores the generators of its checkpoint.
    trainer.train(resume_from_checkpoint=_resumable(folder / f"stage-{number}"))
    trainer.accelerator.wait_for_everyone()  # others may still be reading the best state
    if is_first_process():
        shutil.rmtree(folder / f"stage-{number}", ignore_errors=True)
    return [entry | {"stage": number} for entry in trainer.state.log_history]


def is_first_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def source_examples(config: Config) -> tuple[list[Example], list[Example]]:
    """Train and dev examples that selection may look at."""
    task = config.task
    if task.name == "files":
        columns = {"text": task.text, "label": task.label, "pair": task.pair, "id": ""}
        return tuple(  # type: ignore[return-value]
            to_examples(read_rows(Path(file)), columns, task.source, file)
            for file in (task.train, task.dev)
        )
    train_set = [
        example
        for language in (task.source, *task.supervised)
        for example in load_split(task.name, task.data, "train", language)
    ]
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


def _arguments(config: Config, train: TrainConfig, folder: Path) -> TrainingArguments:
    if train.precision == "fp16" and not torch.cuda.is_available():
        raise UsageError("train.precision = 'fp16'", "needs a GPU", "use 'bf16' or 'fp32' here")
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
        use_cpu=not torch.cuda.is_available(),
        ddp_backend="gloo"
        if not torch.cuda.is_available() and "WORLD_SIZE" in os.environ
        else None,
    )


def _steps(train: TrainConfig, examples: int) -> int:
    """Optimiser steps of a stage, for schedules that depend on it."""
    a_step = train.batch_size * train.accumulate * int(os.environ.get("WORLD_SIZE", "1"))
    planned = max(1, round(train.epochs * -(-examples // a_step)))
    return planned if train.max_steps < 0 else train.max_steps


def _metrics(config: Config, log: list[dict[str, Any]], model: Classifier) -> dict[str, Any]:
    last = [entry for entry in log if entry["stage"] == len(config.stages) - 1]
    out: dict[str, Any] = {
        "selected_by": config.select,
        "dev_score": max(entry["eval_score"] for entry in last if "eval_score" in entry),
        "languages": {},
        "log": log,
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
