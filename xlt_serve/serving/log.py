"""One line of JSON for each request and event, on standard error. Texts only where asked for.

A thread writes, so that a reader who stalls, or a full disk, costs lines and never a request. What is
lost is counted, and said as soon as lines can be written again.
"""

from __future__ import annotations

import atexit
import datetime
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

MOST_BYTES = 1_000_000
"""That wait to be written. One line may be longer if it is alone."""

SHOWN = 1000
"""Characters of a text that a line has, where texts are asked for."""

LAST = 1.0
"""Seconds that the end of the process waits for what is not written yet."""


class Log:
    """``stream``: None is standard error."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.on_lost: Callable[[int], None] = lambda lines: None
        self.lost = 0
        self._stream = stream
        self._lines: deque[bytes] = deque()
        self._bytes = self._unsaid = 0
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def write(self, event: str, **fields: Any) -> None:
        self.put(line(event, **fields))

    def failure(self, event: str, error: BaseException, **fields: Any) -> None:
        """Where it happened, not what the values were: messages of others may quote a text."""
        cause = error.__cause__
        self.write(
            event,
            level="error",
            error=type(error).__name__,
            cause=None if cause is None else type(cause).__name__,
            where=_where(error),
            cause_where=None if cause is None else _where(cause),
            **fields,
        )

    def put(self, text: bytes) -> None:
        """A line in its turn, or lost if too much waits."""
        with self._changed:
            full = self._bytes and self._bytes + len(text) > MOST_BYTES
            if not full and self._started():
                self._lines.append(text)
                self._bytes += len(text)
                self._changed.notify_all()
                return
        self._lose()

    def flush(self, seconds: float = LAST) -> bool:
        """Whether everything was written within this time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines, seconds)

    def _started(self) -> bool:
        if self._writer is None:
            writer = threading.Thread(target=self._write_all, name="xlt-log", daemon=True)
            try:
                writer.start()
            except RuntimeError:  # no thread can be had now
                return False
            self._writer = writer
            atexit.register(self.flush)
        return True

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._lines))
                text = self._lines[0]
            unsaid = self._unsaid
            if unsaid:
                text = line("log_lines_lost", level="error", lines=unsaid) + text
            written = self._written(text)
            if not written:
                self._lose()
            with self._changed:
                self._unsaid -= unsaid if written else 0
                self._bytes -= len(self._lines.popleft())
                self._changed.notify_all()

    def _written(self, text: bytes) -> bool:
        """By the file's number where there is one: a stream's lock, held while nobody reads, would stop
        the end of the process."""
        try:
            stream = self._stream or sys.__stderr__
            if stream is None:
                return False
            try:
                number = stream.fileno()
            except OSError:  # it is none of the system's
                stream.write(text.decode())
                stream.flush()
                return True
            while text:
                try:
                    text = text[os.write(number, text) :]
                except BlockingIOError:  # a pipe that does not wait, and is full
                    time.sleep(0.05)
        except (OSError, ValueError):  # full, gone, closed
            return False
        return True

    def _lose(self) -> None:
        with self._changed:
            self.lost += 1
            self._unsaid += 1
        self.on_lost(1)


def line(event: str, **fields: Any) -> bytes:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    known = {name: value for name, value in fields.items() if value is not None}
    entry = {"time": now, "event": event, "pid": os.getpid(), **known}
    text = json.dumps(entry, ensure_ascii=True, default=str) + "\n"  # any terminal takes it
    return text.encode()


def places(frames: traceback.StackSummary | list[traceback.FrameSummary]) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def _where(error: BaseException) -> list[str]:
    return places(traceback.extract_tb(error.__traceback__)[-8:])


def excerpt(value: Any) -> Any:
    """The value with the beginnings of its texts: to write eight megabytes of them holds up others."""
    if isinstance(value, str):
        return value[:SHOWN]
    if isinstance(value, list):
        return [excerpt(part) for part in value]
    if isinstance(value, dict):
        return {excerpt(name): excerpt(part) for name, part in value.items()}
    return value


class Others(logging.Handler):
    """What BentoML, uvicorn and asyncio log, by way of ours: their handlers write where they stand."""

    def __init__(self, log: Log, instead: logging.Handler) -> None:
        super().__init__(instead.level)
        self._log = log
        self.setFormatter(instead.formatter)
        for each in instead.filters:
            self.addFilter(each)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._log.put((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except Exception:  # a message that does not fit its arguments
            self._log.put(
                line("log_failed", logger=record.name, place=f"{record.pathname}:{record.lineno}")
            )


def take_over(log: Log) -> None:
    """Have every logger write by ``log`` whose handler writes to a standard stream."""
    loggers = [
        each
        for each in logging.root.manager.loggerDict.values()
        if isinstance(each, logging.Logger)
    ]
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    for logger in (logging.root, *loggers):
        for handler in list(logger.handlers):
            if type(handler) is logging.StreamHandler and handler.stream in standard:
                logger.removeHandler(handler)
                logger.addHandler(Others(log, handler))
