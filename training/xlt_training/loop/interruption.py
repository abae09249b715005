"""Ctrl-C in the middle of an epoch: the step under way is finished and kept."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback


class Interruption(TrainerCallback):
    """The first Ctrl-C ends the run after its step, with a checkpoint that the same command goes on from; a
    second one ends it at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # signals are not for others
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def ask(*_: object) -> None:
            self.asked = True
            signal.signal(signal.SIGINT, before)
            told = "stopping after this step; the same command goes on from there; again: at once"
            print(f"xlt: {told}", file=sys.stderr)

        signal.signal(signal.SIGINT, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if self.asked:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.asked:
            control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Half an epoch is not judged: a resumed run would remember a score that others never had. A
        whole one is: it would never be judged later."""
        whole = abs(state.epoch - round(state.epoch)) < 1e-6 or state.global_step >= state.max_steps
        if self.asked and not whole:
            control.should_evaluate = control.should_save = control.should_log = False
