"""What the service is told by its environment. `xlt serve` and containers both set it so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from xlt_serve import bundle as bundles
from xlt_serve.errors import UsageError
from xlt_serve.serving.admission import Limits
from xlt_serve.text import synonyms

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Environment:
    """``bundles``: name → shipped name or folder, in the order of the variable, the first is the
    default. Seconds and bytes throughout."""

    bundles: dict[str, str]
    provider: str = "cpu"
    workers: int = 1
    threads: int = 0
    streams: int = 0  # runs at once on a CPU; 0: as many as threads
    max_body: int = 8 * MB
    max_items: int = 1000
    timeout: float = 60.0
    read_timeout: float = 20.0
    limits: Limits = field(default_factory=Limits)
    keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    log_texts: bool = False
    state: Path | None = None
    translators: Path | None = None  # a TOML file of engines
    synonyms: dict[str, Path] = field(default_factory=dict)  # language → table
    warm: tuple[str, ...] = ()  # graphs to open at the start; none named: all, which takes memory


def read(environment: Mapping[str, str] | None = None) -> Environment:
    """The settings in ``XLT_…`` variables; a value that can't be meant is an error that names it."""
    given = os.environ if environment is None else environment
    base = Limits()
    return Environment(
        bundles=named(
            given.get("XLT_BUNDLES") or given.get("XLT_BUNDLE") or ",".join(bundles.shipped())
        ),
        provider=given.get("XLT_PROVIDER") or "cpu",
        workers=int(_number(given, "XLT_WORKERS", 1, least=1)),
        threads=int(_number(given, "XLT_THREADS", 0)),
        streams=int(_number(given, "XLT_STREAMS", 0)),
        max_body=int(_number(given, "XLT_MAX_BODY", 8 * MB, least=1)),
        max_items=int(_number(given, "XLT_MAX_ITEMS", 1000, least=1)),
        timeout=_number(given, "XLT_TIMEOUT", 60.0, least=0.001),
        read_timeout=_number(given, "XLT_READ_TIMEOUT", 20.0, least=0.001),
        limits=Limits(
            tokens=int(_number(given, "XLT_MAX_WAITING_TOKENS", base.tokens, least=1)),
            wait=_number(given, "XLT_MAX_WAIT", base.wait, least=0.001),
            slice=_number(given, "XLT_RUN_SECONDS", base.slice, least=0.001),
        ),
        keys=_keys(given, "XLT_API_KEYS"),
        admin_keys=_keys(given, "XLT_ADMIN_KEYS"),
        log_texts=given.get("XLT_LOG_TEXTS", "").lower() in ("1", "true", "yes"),
        state=Path(given["XLT_STATE"]) if given.get("XLT_STATE") else None,
        translators=Path(given["XLT_TRANSLATORS"]) if given.get("XLT_TRANSLATORS") else None,
        synonyms=synonyms.files(
            part for part in given.get("XLT_SYNONYMS", "").split(os.pathsep) if part
        ),
        warm=tuple(filter(None, given.get("XLT_WARM", "").replace(" ", "").split(","))),
    )


def joined(tables: Mapping[str, Path]) -> str:
    """What ``XLT_SYNONYMS`` holds: LANGUAGE=FILE, separated as paths are."""
    return os.pathsep.join(f"{language}={file.absolute()}" for language, file in tables.items())


def named(text: str) -> dict[str, str]:
    """ "a=folder,topics": a name and a place for each; a bundle alone is called as its folder is."""
    out: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, place = part.rpartition("=")
        name = name.strip() or Path(place).name
        if name in out:
            raise UsageError(f"bundle {name}", "is there twice", "name them: NAME=FOLDER,…")
        out[name] = place.strip()
    if not out:
        raise UsageError(repr(text), "names no bundle", "give NAME=FOLDER,…")
    return out


def _number(given: Mapping[str, str], name: str, default: float, least: float = 0) -> float:
    text = given.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise UsageError(f"{name}={text}", f"must be a number of at least {least:g}")
    return value


def _keys(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Keys in the variable, separated by commas, and those in the file that NAME_FILE names, a line
    each, # before comments."""
    found = [part.strip() for part in given.get(name, "").split(",")]
    if place := given.get(f"{name}_FILE"):
        try:
            lines = Path(place).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{name}_FILE={place}", f"can't be read ({error})") from None
        found += [line.strip() for line in lines if not line.lstrip().startswith("#")]
        if not any(found):
            # An empty file must not open what was meant to be locked.
            raise UsageError(f"{name}_FILE={place}", "holds no key", "write one key a line")
    keys = tuple(filter(None, found))
    if short := [key for key in keys if len(key) < 16]:
        raise UsageError(
            f"{name} ({len(short)} of {len(keys)})",
            "a key needs at least 16 characters",
            "make one with `openssl rand -hex 32`",
        )
    return keys
