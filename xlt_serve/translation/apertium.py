"""Apertium: rule-based translation by one long-lived pipeline of processes for each pair."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from xlt_serve.errors import DependencyError
from xlt_serve.translation.protocol import PairRefused, Translation, TranslationError
from xlt_serve.translation.sentences import pieces
from xlt_serve.translation.worker import Worker

CODES = {
    "ar": "ara", "bg": "bul", "ca": "cat", "de": "deu", "en": "eng", "es": "spa", "fr": "fra",
    "gl": "glg", "hi": "hin", "it": "ita", "nl": "nld", "pl": "pol", "pt": "por", "ro": "ron",
    "ru": "rus", "sv": "swe", "tr": "tur", "uk": "ukr", "ur": "urd",
}  # fmt: skip
"""Apertium's modes are named by three letters in newer pairs, by two in older ones."""

WINDOW = 8192
"""Bytes that are written before their answers are read: less than any pipe between us holds."""

# Marks of words that it does not know (*), can't transfer (@) or can't inflect (#).
_MARK = re.compile(r"(?<!\w)[*@#](?=\w)")
_UNKNOWN = re.compile(r"(?<!\w)\*(?=\w)")
_WORD = re.compile(r"\w+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f*]+")
_SPECIAL = re.compile(r"[\\\[\]{}^$/@<>]")
_ESCAPED = re.compile(r"\\(.)")
_END = re.compile(r"\.?\[\]")


class Pipe:
    """A running mode. Blocking; one caller at a time."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.process = subprocess.Popen(
            # Not `apertium -z`: its wrapper keeps an answer back until the next text comes.
            ["bash", "-c", _pipeline(mode), mode, "-g", ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a dozen processes: they are ended together
        )

    def translate(self, sentences: Sequence[str]) -> list[str]:
        """Each ends with a null, upon which every process of the pipeline passes on what it has."""
        out: list[str] = []
        waiting = 0
        window: list[bytes] = []
        for sentence in sentences:
            data = framed(sentence).encode("utf-8", "replace") + b"\0"
            if window and waiting + len(data) > WINDOW:
                out += self._exchange(window)
                window, waiting = [], 0
            window.append(data)
            waiting += len(data)
        return out + (self._exchange(window) if window else [])

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # A reader in another thread wakes up at the end of the file and closes nothing itself.
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _exchange(self, window: list[bytes]) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(b"".join(window))
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._ended() from error
        out: list[str] = []
        held = b""
        while len(out) < len(window):
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise self._ended()
            *whole, held = (held + data).split(b"\0")
            out += [bare(part.decode("utf-8", "replace")) for part in whole]
        return out

    def _ended(self) -> TranslationError:
        return TranslationError(f"apertium {self.mode}", "ended before it had answered")


@dataclass
class Apertium:
    """``codes`` maps languages to the names in Apertium's modes, where ours don't know them."""

    name: str = "apertium"
    codes: Mapping[str, str] = field(default_factory=dict)
    _pipes: dict[str, Pipe] = field(default_factory=dict, init=False)
    _workers: dict[str, Worker] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for program in ("apertium", "apertium-wblank-mode", "bash"):
            if shutil.which(program) is None:
                raise DependencyError(
                    program,
                    "is not installed",
                    "apt install apertium apertium-eng-spa (Apertium 3.8 or later)",
                )

    def takes(self, source: str, target: str) -> bool:
        return self.mode(source, target) is not None

    def mode(self, source: str, target: str) -> str | None:
        for code in ({**CODES, **self.codes}, dict(self.codes)):
            mode = f"{code.get(source, source)}-{code.get(target, target)}"
            if mode in installed():
                return mode
        return None

    async def translate(
        self, texts: Sequence[str], source: str, target: str
    ) -> list[Translation | None]:
        mode = self.mode(source, target)
        if mode is None:
            raise PairRefused(
                f"apertium {source}-{target}", "is not installed", "apt install the pair's package"
            )
        worker = self._workers.setdefault(mode, Worker(f"apertium-{mode}"))
        split = [pieces(_CONTROL.sub(" ", text)) for text in texts]
        flat = [sentence for sentences in split for sentence in sentences]
        try:
            given = iter(await worker.run(self._run, mode, flat))
        except (asyncio.CancelledError, TranslationError):
            # Whatever it still has to say would be taken for the next answer.
            self._end(mode)
            raise
        out: list[Translation | None] = []
        for sentences in split:
            raw = " ".join(next(given) for _ in sentences)
            out.append(Translation(unmarked(raw), self.name, known_share(raw)))
        return out

    def close(self) -> None:
        for pipe in list(self._pipes.values()):
            pipe.close()
        for worker in self._workers.values():
            worker.stop()

    def _run(self, mode: str, sentences: list[str]) -> list[str]:
        pipe = self._pipes.get(mode)
        if pipe is None or pipe.process.poll() is not None:
            if pipe is not None:
                pipe.close()
            pipe = self._pipes[mode] = Pipe(mode)
        try:
            return pipe.translate(sentences)
        except BaseException:
            pipe.close()
            if self._pipes.get(mode) is pipe:
                del self._pipes[mode]
            raise

    def _end(self, mode: str) -> None:
        """Killed here; the worker that reads from it, if any does, closes it."""
        pipe = self._pipes.get(mode)
        if pipe is not None:
            pipe.kill()


def framed(sentence: str) -> str:
    """As Apertium's stream has it: its own signs escaped, an end of sentence of its own behind it."""
    return _SPECIAL.sub(r"\\\g<0>", sentence) + ".[]"


def bare(answer: str) -> str:
    """A piece of the stream as text again."""
    return _ESCAPED.sub(r"\1", _END.sub("", answer)).strip()


def unmarked(text: str) -> str:
    return _MARK.sub("", text).strip()


def known_share(text: str) -> float | None:
    """The share of words that Apertium knew; None without words."""
    words = len(_WORD.findall(text))
    return 1 - len(_UNKNOWN.findall(text)) / words if words else None


@cache
def installed() -> frozenset[str]:
    """The names of installed modes."""
    return frozenset(file.stem for file in _modes().glob("*.mode"))


@cache
def _pipeline(mode: str) -> str:
    """The shell's line of a mode, each of its programs told to flush at a null."""
    command = ["apertium-wblank-mode", "-z", str(_modes() / f"{mode}.mode")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode or not done.stdout.strip():
        raise TranslationError(f"apertium {mode}", f"has no pipeline ({done.stderr.strip()[:200]})")
    return done.stdout.strip()


def _modes() -> Path:
    return Path(os.environ.get("APERTIUM_DATADIR", "/usr/share/apertium")) / "modes"
