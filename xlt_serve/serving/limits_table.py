"""``docs/limits.md``: every limit of the service, from what the code itself goes by.

Run by ``python -m xlt_serve.serving.limits_table``.
"""

from __future__ import annotations

from pathlib import Path

from xlt_serve import types, wire
from xlt_serve.serving import (
    bounded_http,
    bounded_json,
    clients,
    connections,
    heartbeat,
    held_bodies,
    log,
    middleware,
    settings,
)
from xlt_serve.smoothing import votes
from xlt_serve.text import tokens
from xlt_serve.translation import router

TABLE = Path(__file__).parents[2] / "docs" / "limits.md"

FIXED: tuple[tuple[float, str], ...] = (
    (tokens.LARGEST, "bytes of UTF-8 of a text or pair; else that item has an error"),
    (bounded_json.LONGEST, "bytes of a string in a body, as it is written there; else 413"),
    (bounded_json.DEEPEST, "levels of lists and objects in a body; else 400"),
    (types.LONGEST, "characters of a label, a template, a name; else 422"),
    (types.LONGEST_CODE, "characters of a language, a kind of noise; else 422"),
    (types.MOST_ENTRIES, "entries of an object among the options; else 422"),
    (wire.MOST_LABELS, "labels of a zero-shot request; else 422"),
    (votes.MOST_SAMPLES, "draws of a text (samples); else 422"),
    (wire.LONGEST_DEADLINE, "milliseconds of deadline_ms; else 422"),
    (middleware.LONGEST_ID, "characters of a request's id; else the service makes one"),
    (router.LONGEST, "characters of a text that are translated; no more are read"),
    (wire.MOST_PROBLEMS, "problems that a 422 names"),
    (bounded_http.CHUNKS, "chunks of a body, beside the next line; else 413"),
    (bounded_http.CHUNK, "bytes for which a body may have one chunk more"),
    (bounded_http.PIPELINED, "requests that wait on a connection; then it ends with their answers"),
    (connections.RESERVE, "connections beyond the most, for probes alone; the others: 503"),
    (connections.SHARE, "of the connections: where one address has more, its own make room first"),
    (bounded_http.LEAST_RATE, "bytes a second of an answer; who reads faster is not cut off"),
    (held_bodies.FREE, "bytes of a body that do not count towards `XLT_MAX_BODIES`"),
    (
        held_bodies.SHARE,
        "of `XLT_MAX_BODIES`: from there on one client's several bodies make room first",
    ),
    (connections.ROOM, "file descriptors that are kept from connections, for everything else"),
    (bounded_http.LAST_WRITE, "seconds in which an answer is taken in while the service ends"),
    (bounded_http.LAST_WORD, "seconds in which the 503 is, that a body which made room gets"),
    (clients.HOPS, "proxies in `X-Forwarded-For` that are read"),
    (heartbeat.DEAD, "seconds that the event loop stands still before the worker is ended"),
    (log.SHOWN, "characters of a text in the log, with `XLT_LOG_TEXTS`"),
    (log.MOST_BYTES, "bytes of the log that wait to be written; else lines are lost"),
)
"""What has no variable: part of the wire's schema, or nothing that one service needs and another not."""


def table() -> str:
    lines = [
        "# Limits",
        "",
        "Seconds and bytes throughout. A variable that is not set has its default.",
        "",
        "| variable | default | least | what it bounds |",
        "|---|---|---|---|",
    ]
    for _, _, said, default in settings.bounds():
        lines.append(f"| `{said.variable}` | {default:,} | {said.least:g} | {said.about} |")
    lines += ["", "## Fixed limits", "", "| limit | what it bounds |", "|---|---|"]
    lines += [f"| {value:,} | {about} |" for value, about in FIXED]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
