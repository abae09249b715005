"""What became of every text, kept as it comes: a run that is killed goes on behind its last line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from xlt_serve.errors import DataError, UsageError
from xlt_serve.translation.sanity import Flaw, Kind

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Made:
    """A text's translation, and what is wrong with it, if anything is."""

    text: str
    translation: str
    engine: str
    quality: float | None = None
    flaw: Flaw | None = None


class TranslationLog:
    """JSON lines for one pair of languages, the first of which says what the translations hang on:
    another engine's are never mixed in. A line that a killed process left half written is cut off."""

    def __init__(self, file: Path, made_by: dict[str, Any]) -> None:
        self.file = file
        self._handle: IO[bytes] | None = None
        self._made: dict[str, Made] = {}
        self._head = {"format": FORMAT, "made_by": json.loads(json.dumps(made_by))}
        if file.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, text: str) -> bool:
        return text in self._made

    def get(self, text: str) -> Made | None:
        return self._made.get(text)

    def add(self, made: list[Made]) -> None:
        """All of them in one write; of a text that is there already the first stays."""
        fresh = {one.text: one for one in reversed(made) if one.text not in self._made}
        lines = "".join(_line(asdict(fresh[text])) for text in reversed(fresh))
        if fresh:
            self._open().write(lines.encode("utf-8", "surrogatepass"))
        self._made |= fresh

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> TranslationLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> IO[bytes]:
        if self._handle is None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            new = not self.file.exists() or not self.file.stat().st_size
            self._handle = self.file.open("ab", buffering=0)
            if new:
                self._handle.write(_line(self._head).encode())
        return self._handle

    def _read(self) -> None:
        whole, newline, torn = self.file.read_bytes().rpartition(b"\n")
        if torn:
            with self.file.open("r+b") as handle:
                handle.truncate(len(whole + newline))
        for number, line in enumerate(whole.split(b"\n") if newline else [], 1):
            try:
                row = json.loads(line.decode("utf-8", "surrogatepass"))
                if number > 1:
                    made = _made(row)
                    self._made[made.text] = made
            except (ValueError, TypeError, KeyError) as error:
                raise DataError(
                    f"{self.file} line {number}", f"can't be read ({error})", "take the line out"
                ) from None
            if number == 1 and row != self._head:
                raise UsageError(
                    self.file,
                    "was begun with other translators (engines, settings, models or routes)",
                    "give another --out, or --overwrite",
                )


def _made(row: dict[str, Any]) -> Made:
    flaw = row["flaw"] and Flaw(cast(Kind, row["flaw"]["kind"]), row["flaw"]["rule"])
    return Made(row["text"], row["translation"], row["engine"], row["quality"], flaw)


def _line(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"
