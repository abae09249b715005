"""One training run: config in, checkpoint folder out. The loop is transformers' Trainer.

That gives resuming, mixed precision, accumulation and several GPUs (``torchrun -m xlt_serve.cli
train …``); what is ours is the objective.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils.hub import cached_file

from xlt_serve.errors import DataError, UsageError
from xlt_training.data import Splits, TaskConfig, left_out, opened, recorded
from xlt_training.data.digests import digests_of, refuse_other_rows
from xlt_training.data.trained_on import trained_on
from xlt_training.data.translations import translated_source
from xlt_training.loop import evaluate, toml_tables
from xlt_training.loop import model as models
from xlt_training.loop.class_weights import refuse_unknown, weights_of
from xlt_training.loop.config import Config, Stage, is_head_alone
from xlt_training.loop.interruption import Interruption
from xlt_training.loop.learner import (
    Batches,
    Learner,
    ObjectiveTrainer,
    Report,
    dev_score,
    tensors,
)
from xlt_training.loop.method import Context
from xlt_training.loop.network import Classifier
from xlt_training.loop.pretrained import check, resolve
from xlt_training.loop.progress import Bar
from xlt_training.loop.report import draw, loggers, overview
from xlt_training.loop.settings import TrainConfig
from xlt_training.loop.types import Example
from xlt_training.methods import METHODS

RUN = "run.json"
RESUME = "resume"
FOLDS = "folds"


def train(config: Config, out: Path, judge: bool = True) -> dict[str, Any]:
    """Train, or go on where a stopped run left off; a finished run is returned as it is. ``judge``:
    score every language in the end; a benchmark that does it itself need not wait for it twice."""
    before = _begun(config, out)
    if done := _finished(config, out, before):
        return done
    data = opened(config.task)
    source_set, dev_set, labels = source_examples(config, data)
    learnt_from = trained_on(config.task, source_set)  # now: files may be moved while it trains
    rows = digests_of(source_set, data)
    refuse_other_rows(out, before.get("data"), rows)
    refuse_unknown([stage.train.class_weights for stage in config.stages], labels)
    set_seed(config.seed)
    most = max(stage.train.max_length for stage in config.stages)
    model = models.build(config.encoder, labels, most)
    model.encoding.check(dev_set)
    noted = stamp(config) | {"data": rows}
    if is_first_process():  # not before data and encoder were found: a wrong call leaves no trace
        _write(out / RUN, noted)
        judged = {language: data.load("dev", language) for language in data.languages("dev")}
        print("\n".join(overview(source_set, dev_set, judged)), file=sys.stderr)
    several = len(config.stages) > 1
    context = dataclasses.replace(
        told(config, data),
        pretrained={n: p.detach().clone() for n, p in model.pretrained_parameters() if several},
        tuned=tuned(model, config),
        encoder=noted["encoder_weights"],
    )
    log: list[dict[str, Any]] = []
    for number, stage in enumerate(config.stages):
        set_seed(config.seed + number)
        for method in stage.methods:
            if type(method) not in context.prepared:
                method.attach(model)
        finished = out / RESUME / f"stage-{number}.safetensors"
        if finished.is_file():
            model.load_state_dict(load_file(finished))
            log += json.loads(finished.with_suffix(".json").read_text())
        else:
            run = StageRun(config, stage, number, context, out / RESUME)
            with as_before(model):
                log += run_stage(run, model, source_set, dev_set)
        known = context.prepared | {type(method) for method in stage.methods}
        context = dataclasses.replace(context, prepared=known)
    model.encoding.max_length = min(most, model.room)
    fitted = {} if config.task.fold else fitted_by_methods(config, data, out)
    if is_first_process():
        description = _description(config, source_set, model, fitted)
        models.save(out, model, dataclasses.replace(description, trained_on=learnt_from))
        draw(log, out / "curves.png")
    metrics = _metrics(config, log, model, data if judge else None)
    if is_first_process():
        _write(out / "metrics.json", metrics)
        for scratch in (RESUME, FOLDS):
            shutil.rmtree(out / scratch, ignore_errors=True)
    return metrics


def _description(
    config: Config,
    source_set: list[Example],
    model: Classifier,
    fitted: dict[str, dict[str, float]],
) -> models.Description:
    return models.Description(
        task=config.task.name,
        pair=source_set[0].pair is not None,
        labels=model.labels,
        source_language=config.task.source,
        max_length=model.encoding.max_length,
        config=config.described(),
        fitted=fitted,
    )


def told(config: Config, data: Splits) -> Context:
    """What methods may know of a run before it begins."""
    task = config.task
    return Context(
        task.source,
        config.seed,
        task.lexicon_place,
        task.translation_folder,
        data.languages("dev"),
        synonyms=task.synonyms,
    )


def fitted_by_methods(config: Config, data: Splits, out: Path) -> dict[str, dict[str, float]]:
    """What methods find with models of parts of the train set, which are trained beside this one."""

    def again(fold: str) -> tuple[Classifier, list[Example], Context]:
        task = dataclasses.replace(config.task, fold=fold)
        folder = out / FOLDS / fold.replace("/", "-of-")
        train(dataclasses.replace(config, task=task), folder, judge=False)
        model, _ = models.load(folder)
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        held = [e for e in train_examples(task, data) if left_out(task, e)]
        return model, [e for e in held if e.language == task.source], told(config, data)

    found: dict[str, dict[str, float]] = {}
    for method in config.stages[-1].methods:
        found |= method.fitted(again)
    return found


@dataclasses.dataclass(frozen=True)
class StageRun:
    """One stage of a config, what its methods may know, and where its checkpoints go."""

    config: Config
    stage: Stage
    number: int
    context: Context
    folder: Path

    @property
    def name(self) -> str:
        """For a reader; empty where there is no other stage to take it for."""
        stages = self.config.stages
        if len(stages) == 1:
            return ""
        head = self.number == 0 and is_head_alone(self.stage)
        return f"stage {self.number + 1} of {len(stages)}{' (head alone)' if head else ''}"


@contextmanager
def as_before(model: Classifier) -> Iterator[None]:
    """What a method changes beside parameters ends with its stage: a run that is resumed behind it would
    know nothing of it."""
    attention = model.hf.config._attn_implementation
    shares = {module: module.p for module in model.modules() if isinstance(module, nn.Dropout)}
    try:
        yield
    finally:
        model.hf.set_attn_implementation(attention)
        for module, share in shares.items():
            module.p = share


def run_stage(
    run: StageRun, model: Classifier, source_set: list[Example], dev_set: list[Example]
) -> list[dict[str, Any]]:
    """Train ``model`` through one stage, or the rest of it; its best state on dev is kept, or, with
    ``select = "last"`` of the stage or the config, its last.

    Returns the log. Everything random hangs on the seed and the stage's number.
    """
    settings, methods = run.stage.train, run.stage.methods
    train_set = source_set
    for method in methods:
        train_set = list(method.augment(train_set, run.context))
    context = dataclasses.replace(run.context, steps=_steps(settings, len(train_set)))
    checkpoints = run.folder / f"stage-{run.number}"
    best = not takes_last(run.config, run.stage)
    arguments = _arguments(settings, run.config.seed + run.number, checkpoints, best)
    model.to(arguments.device)
    model.requires_grad_(True)
    model.encoding.max_length = min(settings.max_length, model.room)
    freeze_bottom(model, settings.freeze)
    model.step = 0
    weigh_labels(model, settings, train_set)
    batches = Batches(model, train_set, settings.batch_size)
    for method in methods:
        method.prepare(model, batches, context)
    interruption = Interruption()
    trainer = ObjectiveTrainer(
        group_by_length=settings.group_by_length,
        model=Learner(model, methods, run.context.source),
        args=arguments,
        data_collator=lambda examples: tensors(model.encoding.batch(examples)),
        train_dataset=train_set,
        eval_dataset=dev_set,
        compute_metrics=dev_score,
        callbacks=[Report(run.name), interruption, *loggers(run.folder.parent / "logs")],
    )
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(Bar(trainer.terms))
    resumed = _resumable(checkpoints)
    if resumed and is_first_process():
        print(f"resuming at step {resumed.rpartition('-')[2]}", file=sys.stderr)
    # Trainer seeds again from here on; a resume restores the generators of its checkpoint.
    with interruption.watching():
        trainer.train(resume_from_checkpoint=resumed)
    trainer.accelerator.wait_for_everyone()  # others may still be reading the best state
    log = [entry | {"stage": run.number} for entry in trainer.state.log_history]
    if is_first_process():
        finished = run.folder / f"stage-{run.number}.safetensors"
        _write(finished.with_suffix(".json"), log)
        state = {name: value.contiguous() for name, value in model.state_dict().items()}
        save_file(state, finished.with_suffix(".part"))
        finished.with_suffix(".part").rename(finished)
        shutil.rmtree(checkpoints, ignore_errors=True)
    return log


def stamp(config: Config) -> dict[str, Any]:
    """What a run folder records and a resume compares: the config, and which weights it began with."""
    described = config.described() | {"encoder_weights": weights_digest(config.encoder)}
    read = {file for stage in config.stages for method in stage.methods for file in method.reads()}
    if read:
        described["files"] = {str(file): digest_of(file) for file in sorted(read)}
    resolved: dict[str, Any] = json.loads(json.dumps(described))  # as it is read again
    return resolved


def weights_digest(encoder: str) -> str:
    """The first digits of the SHA-256 of an encoder's weights; of one from the hub, its commit.

    The name says too little: ``small`` stays ``small`` when it is made again.
    """
    place = resolve(encoder)
    if not Path(place).is_dir():
        check(place)
        return Path(cached_file(place, "config.json") or "").parent.name  # snapshots/COMMIT
    digests = []
    for file in sorted(Path(place).glob("model*.safetensors")):  # large ones come in parts
        digests.append(digest_of(file))
    return "+".join(digests)


def digest_of(file: Path) -> str:
    """The first digits of the SHA-256 of a file."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()[:16]


def tuned(model: Classifier, config: Config) -> frozenset[str]:
    """The encoder's parameters that ``train.freeze`` leaves free in some stage, by name."""
    out: set[str] = set()
    for stage in config.stages:
        model.requires_grad_(True)
        freeze_bottom(model, stage.train.freeze)
        out |= {name for name, p in model.encoder_parameters() if p.requires_grad}
    return frozenset(out)


def takes_last(config: Config, stage: Stage) -> bool:
    """Whether a stage ends with its last state, whatever dev says."""
    return "last" in (config.select, stage.select)


def freeze_bottom(model: Classifier, layers: int) -> None:
    """Keep the embeddings and the lowest ``layers``, -1 for none, as they were pretrained.

    Fine-tuning moves the embeddings of the source language's words alone, away from those of their
    translations; held still, they stay aligned (Wu and Dredze 2019).
    """
    if layers >= 0:
        model.base.embeddings.requires_grad_(False)
        for layer in model.layers("train.freeze")[:layers]:
            layer.requires_grad_(False)


def weigh_labels(model: Classifier, settings: TrainConfig, train_set: list[Example]) -> None:
    """Put the weights of a stage's labels into its model, which hands them to the loss."""
    weights = weights_of(settings.class_weights, model.labels, (e.label for e in train_set))
    model.class_weights = None if weights is None else torch.tensor(weights)
    if weights is not None and is_first_process():
        shown = ", ".join(f"{lb} {w:.3g}" for lb, w in zip(model.labels, weights, strict=True))
        print(f"class weights: {shown}", file=sys.stderr)


def is_first_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def source_examples(config: Config, data: Splits) -> tuple[list[Example], list[Example], list[str]]:
    """Train examples, the dev examples that selection may look at, which are those with a label that is
    trained, and the labels."""
    task = config.task
    whole = train_examples(task, data)
    train_set = [example for example in whole if not left_out(task, example)]
    chosen = data.languages("dev") if config.select == "all-dev" else [task.source]
    dev_set = [example for language in chosen for example in data.load("dev", language)]
    known = {example.label for example in whole}
    if len(known) < 2:
        raise DataError(
            data.name,
            f"has one label to train on: {', '.join(known)}",
            "check the column: task.label",
        )
    dev_set = [example for example in dev_set if example.label in known]
    if not dev_set:
        raise DataError(data.name, "has no dev example with a label of its train set")
    return train_set, dev_set, sorted(known)


def train_examples(task: TaskConfig, data: Splits) -> list[Example]:
    """All of them, also those that ``task.fold`` leaves out."""
    first = data.load("train", task.translated_from or task.source)
    out = translated_source(task, first) if task.translated_from else first
    return [*out, *(e for lg in task.supervised for e in data.load("train", lg))]


def _arguments(train: TrainConfig, seed: int, folder: Path, best: bool) -> TrainingArguments:
    """``best``: end with the state that was best on dev, not with the last."""
    if train.precision == "fp16" and not torch.cuda.is_available():
        raise UsageError("train.precision = 'fp16'", "needs a GPU", "use 'bf16' or 'fp32' here")
    every = "steps" if train.evaluate_every else "epoch"
    steps = train.evaluate_every or 1
    arguments = TrainingArguments(
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
        seed=seed,
        eval_strategy=every,
        eval_steps=steps,
        save_strategy=every,
        save_steps=steps,
        save_total_limit=2,
        load_best_model_at_end=best,
        metric_for_best_model="score",
        greater_is_better=True,
        logging_strategy=every,
        logging_steps=steps,
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
    if arguments.n_gpu > 1:
        # One process on several GPUs would split a batch behind the objective's back: torchrun
        # gives each GPU its own process.
        arguments._n_gpu = 1
    return arguments


def _steps(train: TrainConfig, examples: int) -> int:
    """Optimiser steps of a stage, for schedules that depend on it."""
    a_step = train.batch_size * train.accumulate * int(os.environ.get("WORLD_SIZE", "1"))
    planned = max(1, round(train.epochs * -(-examples // a_step)))
    return planned if train.max_steps < 0 else train.max_steps


def _metrics(
    config: Config, log: list[dict[str, Any]], model: Classifier, data: Splits | None
) -> dict[str, Any]:
    """``data``: to score every language on; none: nobody asked."""
    last = [entry for entry in log if entry["stage"] == len(config.stages) - 1]
    scores = [entry["eval_score"] for entry in last if "eval_score" in entry]
    out: dict[str, Any] = {
        "selected_by": config.select,
        "dev_score": scores[-1] if takes_last(config, config.stages[-1]) else max(scores),
        "languages": {},
        "log": log,
    }
    if data is not None:
        predict = evaluate.torch_predictor(model)
        judged = evaluate.by_language(predict, data, "dev", progress=sys.stderr.isatty())
        out["languages"] = {language: vars(s) for language, s in judged.items()}
        out["summary"] = evaluate.summary(judged, config.task.source)
    return out


def _begun(config: Config, out: Path) -> dict[str, Any]:
    """What the run in ``out`` recorded, {} where there is none; an error if it is of another config, or
    on other weights of the encoder."""
    if not out.exists() or not any(out.iterdir()):
        return {}
    if not (out / RUN).is_file():
        raise UsageError(out, "is not empty and holds no run", "give an empty or new --out")
    try:
        before: dict[str, Any] = json.loads((out / RUN).read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        raise UsageError(out / RUN, "is not JSON", "remove the folder and train again") from None
    now = stamp(config)
    if "task" in before:  # of a version without some of its keys
        before["task"] = dataclasses.asdict(recorded(before["task"]))
    for stage in before.get("stages", []):
        stage["train"] = dataclasses.asdict(TrainConfig()) | stage["train"]
        stage["methods"] = [_completed(each) for each in stage["methods"]]
    if "files" not in before:
        now.pop("files", None)
    if {name: value for name, value in before.items() if name != "data"} != now:
        raise UsageError(
            out,
            f"holds a run with another config ({differing(before, now)})",
            "give another --out",
        )
    return before


def differing(before: dict[str, Any], now: dict[str, Any], most: int = 3) -> str:
    """Keys with both values, as ``train.epochs`` of a stage: what was changed."""
    old, new = (dict(toml_tables.dotted(_numbered(table))) for table in (before, now))
    keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    keys = [key for key in keys if not key.startswith("data.")]
    told = [f"{key}: {old.get(key)!r}, now {new.get(key)!r}" for key in keys[:most]]
    return "; ".join([*told, *(["…"] if len(keys) > most else [])])


def _numbered(value: Any) -> Any:
    """Lists of tables as tables by number."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {str(number): entry for number, entry in enumerate(value)}
    if isinstance(value, dict):
        return {key: _numbered(entry) for key, entry in value.items()}
    return value


def _finished(config: Config, out: Path, before: dict[str, Any]) -> dict[str, Any] | None:
    """The metrics of a run that has ended, on the rows that there are now as far as that can be told."""
    if not before or not (out / "metrics.json").is_file():
        return None
    note = "it did not record its rows, so they are not compared"
    if "data" in before:
        note = "on the same rows"
        try:
            data = opened(config.task)
            now = digests_of(source_examples(config, data)[0], data)
        except DataError as error:  # who has the run may have no data any more
            if not any(gone in error.rule for gone in ("is not there", "from the hub")):
                raise
            note = f"its rows are not compared ({error})"
        else:
            refuse_other_rows(out, before["data"], now)
    if is_first_process():
        print(
            f"{out}: this run was finished before, {note}; nothing is trained, these are its scores",
            file=sys.stderr,
        )
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    return metrics


def _completed(entry: dict[str, Any]) -> dict[str, Any]:
    """A method of an earlier version's run, with the keys that it had not."""
    kind = METHODS.get(entry["name"])
    if kind is None:
        return entry
    defaults = {
        f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING
    }
    return defaults | dict(kind.first_edition) | entry


def _resumable(folder: Path) -> str | None:
    """The last checkpoint that was written to its end; a half-written one is removed."""
    while folder.is_dir() and (last := get_last_checkpoint(str(folder))):
        if (Path(last) / "trainer_state.json").is_file():
            return str(last)
        if not is_first_process():
            return None
        shutil.rmtree(last)
    return None


def _write(file: Path, value: Any) -> None:
    """Whole or not at all: others may be reading, or the power may go."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    part.replace(file)
