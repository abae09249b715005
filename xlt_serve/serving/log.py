"""One line of JSON for each request and event, on standard error. Texts only where asked for."""

from __future__ import annotations

import datetime
import json
import os
import sys
import traceback
from typing import Any, TextIO


class Log:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def write(self, event: str, **fields: Any) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        known = {name: value for name, value in fields.items() if value is not None}
        line = {"time": now, "event": event, "pid": os.getpid(), **known}
        text = json.dumps(line, ensure_ascii=True, default=str) + "\n"  # any terminal takes it
        stream = self._stream or sys.stderr
        stream.write(text)
        stream.flush()

    def failure(self, event: str, error: BaseException, **fields: Any) -> None:
        """Where it happened, not what the values were: messages of others may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        cause = error.__cause__
        self.write(
            event,
            level="error",
            error=type(error).__name__,
            cause=None if cause is None else f"{type(cause).__name__}: {str(cause)[:200]}",
            where=where,
            **fields,
        )
