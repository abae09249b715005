"""Make the small multilingual encoder: ``python -m xlt_training.encoders.distill --data DIR --minutes N``.

A run may be stopped (SIGTERM) or paused (SIGSTOP to its process group) at any time; the next one goes
on from the last checkpoint in ``--work``, or, where there is none, from the weights in ``--begin``. The
learning rate is constant but for a warm-up and, in the last part of each run, a cool-down to zero,
after which the encoder is written to ``--out``; the next run goes on from before the cool-down. Every
ten minutes the average of the weights is written to ``snapshot`` in ``--work``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from xlt_training.encoders import corpus, examples, material, teacher, vocabulary
from xlt_training.encoders.distillation import Distillation
from xlt_training.encoders.examples import Material
from xlt_training.encoders.targets import TargetStore, teacher_in
from xlt_training.encoders.workers import Crew
from xlt_training.loop.pretrained import SHIPPED

HERE = Path(__file__).parent
LONGEST_STEP = 20.0  # seconds that a step counts at most: a paused run does not age
# Large tensors are handed back to the system after every use, and fetched again page by page, unless
# the C library is told otherwise before it starts. A step takes a tenth to a quarter less so.
ALLOCATOR = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--config",
        type=Path,
        nargs="+",
        default=[HERE / "small.toml"],
        help="later files change values of earlier ones",
    )
    parser.add_argument("--work", type=Path, default=Path("build/encoder"))
    parser.add_argument("--out", type=Path, default=SHIPPED / "small")
    parser.add_argument(
        "--begin", type=Path, default=SHIPPED / "small", help="weights to go on from"
    )
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--cool-down", type=float, default=0.2, help="share of the run")
    parser.add_argument("--workers", type=int, default=2, help="processes, a thread each")
    options = parser.parse_args(arguments)
    config = merged([tomllib.loads(file.read_text()) for file in options.config])
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    pools = material.gathered(options.data, options.work)
    tokenizer = make_tokenizer(pools, options.work, config["model"], options.begin)
    print(f"{len(tokenizer)} pieces, {len(pools.targets)} texts for the teacher", flush=True)
    vectors = TargetStore(options.work / "targets", teacher_in(options.work / "teacher"))
    run = Distillation(config, options.work, options.begin, tokenizer, pools, vectors)
    run.start()
    with Crew(run, options.workers) as crew:
        signal.signal(signal.SIGTERM, crew.halt)
        finished = train(run, crew, options.minutes * 60, options.cool_down)
    if finished:
        run.save_encoder(options.out, averaged=not options.cool_down)
        print(f"written to {options.out} at step {run.step}", flush=True)


def merged(tables: list[dict[str, Any]]) -> dict[str, Any]:
    """Table by table, later values over earlier ones."""
    out: dict[str, Any] = {}
    for table in tables:
        for name, values in table.items():
            out[name] = out.get(name, {}) | values
    return out


def train(run: Distillation, crew: Crew, limit: float, cool_share: float) -> bool:
    """Until ``limit`` seconds have been spent; False where it was stopped before."""
    begun = last_saved = run.seconds
    log = TrainingLog(run)
    cooling: float | None = None
    run.student.train()
    while True:
        clock = time.monotonic()
        made = run.batches(run.block)
        run.seconds += time.monotonic() - clock
        for number in range(run.batch, len(made)):
            spent = run.seconds - begun
            if cooling is None and cool_share and spent >= limit * (1 - cool_share):
                run.save_checkpoint()
                cooling = spent
            if crew.halted or spent > limit:
                if cooling is None:
                    save(run)
                return not crew.halted
            factor = min(1.0, (run.step - run.warm_from + 1) / run.settings["warm_up"])
            if cooling is not None:
                factor *= max(0.0, (limit - spent) / max(limit - cooling, 1e-9))
            clock = time.monotonic()
            log.add(crew.one_step(made[number], factor))
            run.batch = number + 1
            run.seconds += min(time.monotonic() - clock, LONGEST_STEP)
            log.say(every=60)
            if cooling is None and run.seconds - last_saved > 600:
                last_saved = run.seconds
                save(run)
        run.block, run.batch = run.block + crew.size, 0


def save(run: Distillation) -> None:
    run.save_checkpoint()
    run.save_encoder(run.work / "snapshot", averaged=True)


class TrainingLog:
    """A line a minute: where the run stands, its speed, and the mean of each term since the last."""

    def __init__(self, run: Distillation) -> None:
        self.run = run
        self.seconds, self.tokens = run.seconds, run.tokens
        self.terms: dict[str, list[float]] = defaultdict(list)

    def add(self, terms: dict[str, float]) -> None:
        for name, value in terms.items():
            self.terms[name].append(value)

    def say(self, every: float) -> None:
        run, passed = self.run, self.run.seconds - self.seconds
        if passed < every:
            return
        terms = " ".join(f"{k} {sum(v) / len(v):.3f}" for k, v in sorted(self.terms.items()))
        rate = (run.tokens - self.tokens) / passed
        place = f"step {run.step} {run.tokens / 1e6:.1f} M tokens {run.seconds / 60:.0f} min"
        print(f"{time.strftime('%H:%M')} {place} {rate:.0f} tok/s {terms}", flush=True)
        self.seconds, self.tokens = run.seconds, run.tokens
        self.terms.clear()


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


if __name__ == "__main__":
    if "GLIBC_TUNABLES" not in os.environ and sys.platform == "linux":
        os.environ["GLIBC_TUNABLES"] = ALLOCATOR
        os.execv(
            sys.executable, [sys.executable, "-m", "xlt_training.encoders.distill", *sys.argv[1:]]
        )
    main()
