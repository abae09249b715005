"""JSON as the service sends it: no spaces, no escapes but those that are needed."""

from __future__ import annotations

import json
from typing import Any


def as_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")
