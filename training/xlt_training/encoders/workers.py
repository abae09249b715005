"""Several processes, a thread each, on one set of weights in shared memory (Recht et al. 2011, Hogwild).

Each takes its own blocks, computes a gradient and applies it without waiting. On a small model two
threads in one process wait for each other many times a step, and far longer where other programs
want the cores too. Updates may overlap and one be lost; what that costs has not been compared. One
worker alone is the ordinary loop, and repeats itself exactly.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from multiprocessing.context import ForkProcess

import torch

from xlt_training.encoders.batches import DistillBatch
from xlt_training.encoders.distillation import Distillation


class Crew:
    """The process that leads (saves, reports, sets the rate), and those that follow it."""

    def __init__(self, run: Distillation, size: int) -> None:
        self.run, self.size = run, size
        self.leader = os.getpid()
        self.halted = False
        # Set by the leader: the factor of the rate (below zero: end). Counted by all: steps, tokens.
        self.factor = torch.zeros(1).share_memory_()
        self.done = torch.tensor([run.step, run.tokens]).share_memory_()
        self.processes: list[ForkProcess] = []

    def __enter__(self) -> Crew:
        if self.size > 1:
            self.run.share()
            gc.freeze()  # else a collection would copy every page of the material
            context = multiprocessing.get_context("fork")  # which copies no material
            self.processes = [
                context.Process(target=self._follow, args=(number,), daemon=True)
                for number in range(1, self.size)
            ]
            for process in self.processes:
                process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.factor.fill_(-1)
        for process in self.processes:
            process.join()

    def halt(self, *_: object) -> None:
        """As a handler of SIGTERM: the leader saves after its step, and all end."""
        self.halted = True

    def one_step(self, batch: DistillBatch, factor: float) -> dict[str, float]:
        """A step of the leader; the run's counts are those of all."""
        self.factor.fill_(factor)
        terms = self._counted(batch, factor)
        self.run.step, self.run.tokens = self.done.tolist()
        return terms

    def _counted(self, batch: DistillBatch, factor: float) -> dict[str, float]:
        run = self.run
        step, tokens = run.step, run.tokens
        terms = run.one_step(batch, factor)
        self.done += torch.tensor([run.step - step, run.tokens - tokens])
        return terms

    def _follow(self, number: int) -> None:
        run = self.run
        run.worker, block = number, run.block + number
        run.student.train()
        while True:
            for batch in run.batches(block):
                while (factor := float(self.factor)) == 0 and os.getppid() == self.leader:
                    time.sleep(0.05)
                if factor < 0 or os.getppid() != self.leader:
                    return
                self._counted(batch, factor)
            block += self.size
