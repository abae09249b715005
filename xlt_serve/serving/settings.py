"""What the service is told by its environment. `xlt serve` and containers both set it so."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.errors import UsageError
from xlt_serve.runtime.gpu import devices
from xlt_serve.serving import clients, cors
from xlt_serve.serving.admission import Limits
from xlt_serve.serving.clients import Network
from xlt_serve.text import synonyms

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of the environment: its variable, what it means in one line, the least it may be."""

    variable: str
    about: str
    least: float = 1


def bound(default: float, variable: str, about: str, least: float = 1) -> Any:
    """A field of ``Environment`` that is read, checked and described by this line alone. A whole
    number stays one."""
    return field(default=default, metadata={"": Bound(variable, about, least)})


@dataclass(frozen=True, slots=True)
class Environment:
    """``bundles``: name → shipped name or folder, in the order of the variable, the first is the
    default. Seconds and bytes throughout. To add a limit, add a ``bound`` here, then run
    ``python -m xlt_serve.serving.limits_table``."""

    bundles: dict[str, str]
    provider: str = "cpu"
    devices: tuple[int, ...] = ()  # numbers of GPUs, a worker each
    workers: int = bound(1, "XLT_WORKERS", "processes")
    threads: int = bound(0, "XLT_THREADS", "threads of each worker; 0: cores / workers", 0)
    budget: int = bound(
        0, "XLT_BUDGET", "padded tokens of one run; 0: 512 on a CPU, 4,096 on a GPU", 0
    )
    streams: int = bound(0, "XLT_STREAMS", "runs at once on a CPU; 0: as many as threads", 0)

    max_connections: int = bound(
        1000,
        "XLT_MAX_CONNECTIONS",
        "connections of a worker at once, where its file descriptors allow so many; then one that "
        "waits for a request, else for the rest of one, is closed, the longest first, and first those of "
        "an address with over an eighth of all; where none waits: 503",
    )
    max_header_bytes: int = bound(
        16_384,
        "XLT_MAX_HEADER_BYTES",
        "bytes of a request's line, headers and trailers; else 431",
        256,
    )
    max_headers: int = bound(100, "XLT_MAX_HEADERS", "headers and trailers of a request; else 431")
    header_timeout: float = bound(
        10.0,
        "XLT_HEADER_TIMEOUT",
        "seconds from a connection, or from a further request's first byte, to the end of its headers; "
        "else 408",
        0.001,
    )
    idle_timeout: float = bound(
        5.0, "XLT_IDLE_TIMEOUT", "seconds that a connection is kept after an answer", 0.001
    )
    write_timeout: float = bound(
        20.0,
        "XLT_WRITE_TIMEOUT",
        "seconds in which a client takes in an answer, or 100,000 bytes of it a second, else it is cut off; "
        "5 at most once the service is told to end",
        0.001,
    )
    drain_timeout: float = bound(
        5.0,
        "XLT_DRAIN_TIMEOUT",
        "seconds that what a refused client still sends is read and thrown away, so that it sees the "
        "answer",
        0.001,
    )
    max_drain: int = bound(64 * MB, "XLT_MAX_DRAIN", "bytes that are thrown away so", 0)

    max_body: int = bound(8 * MB, "XLT_MAX_BODY", "bytes of a request's body; else 413")
    read_timeout: float = bound(
        20.0, "XLT_READ_TIMEOUT", "seconds in which a body comes; else 408", 0.001
    )
    max_bodies: int = bound(
        64 * MB,
        "XLT_MAX_BODIES",
        "bytes of bodies that a worker holds at once, the first 65,536 of each aside, as texts once they "
        "are parsed; then one of the client who holds most is refused, and of a client with several from a "
        "quarter on: 429",
    )
    max_values: int = bound(
        0,
        "XLT_MAX_VALUES",
        "values and keys in a body, counted before it is parsed, also 100 bytes outside of strings as one; "
        "else 413; 0: 8 × XLT_MAX_ITEMS + 1,000",
        0,
    )

    max_items: int = bound(1000, "XLT_MAX_ITEMS", "texts or pairs of a request; else 413")
    max_pairs: int = bound(
        20_000, "XLT_MAX_PAIRS", "labels × texts of a zero-shot request; else 413"
    )
    max_answer: int = bound(16 * MB, "XLT_MAX_ANSWER", "bytes of an answer; else 413")
    max_unsent: int = bound(
        64 * MB,
        "XLT_MAX_UNSENT",
        "bytes of answers that a worker holds until clients take them in, the first 65,536 of each aside; "
        "then the oldest of the client who holds most is cut off, or refused: 429",
    )
    timeout: float = bound(
        60.0, "XLT_TIMEOUT", "seconds from a whole request to its answer; else 504", 0.001
    )
    load_timeout: float = bound(
        60.0,
        "XLT_LOAD_TIMEOUT",
        "seconds of a swap in all workers, and of a bundle's trial in a process of its own, also at the start; "
        "else 422 or 500, and nothing changes",
        0.001,
    )
    limits: Limits = field(
        default_factory=Limits,
        metadata={
            "tokens": Bound(
                "XLT_MAX_WAITING_TOKENS",
                "tokens that wait in a worker; from then on a client with more than its equal share of them "
                "gets 429",
            ),
            "wait": Bound(
                "XLT_MAX_WAIT",
                "seconds that a request may wait, or as long as it works, or for 32 rows like its own, "
                "whatever is longest; else 429; a client that is shed: as long as it works",
                0.001,
            ),
            "slice": Bound("XLT_RUN_SECONDS", "seconds that a batch should take at most", 0.001),
            "windows": Bound(
                "XLT_MAX_WINDOWS", "windows of a request's long texts in all; else 413"
            ),
            "drawn_tokens": Bound(
                "XLT_MAX_DRAWN_TOKENS", "draws × tokens of a smoothed request; else 413"
            ),
        },
    )

    keys: tuple[str, ...] = field(default=(), repr=False)
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    scrape_keys: tuple[str, ...] = field(default=(), repr=False)  # good for /metrics alone
    host: str = ""  # the address that is listened on; not told: any
    proxies: tuple[Network, ...] = ()  # whose X-Forwarded-For is believed
    origins: tuple[str, ...] = ()  # whose pages may ask from a browser
    log_texts: bool = False
    state: Path | None = None
    translators: Path | None = None  # a TOML file of engines
    synonyms: dict[str, Path] = field(default_factory=dict)  # language → table
    warm: tuple[str, ...] = ()  # graphs to open at the start; none named: all, which takes memory


def read(environment: Mapping[str, str] | None = None) -> Environment:
    """The settings in ``XLT_…`` variables; a value that can't be meant is an error that names it."""
    given = os.environ if environment is None else environment
    return Environment(
        bundles=named(
            given.get("XLT_BUNDLES")
            or given.get("XLT_BUNDLE")
            or ",".join(bundles.shipped() or [bundles.DEFAULT])
        ),
        provider=given.get("XLT_PROVIDER") or "cpu",
        devices=devices.numbers(given["XLT_DEVICE"]) if given.get("XLT_DEVICE") else (),
        keys=_keys(given, "XLT_API_KEYS"),
        admin_keys=_keys(given, "XLT_ADMIN_KEYS"),
        scrape_keys=_keys(given, "XLT_SCRAPE_KEYS"),
        host=given.get("XLT_HOST", "").strip(),
        proxies=clients.networks(_listed(given, "XLT_PROXIES")),
        origins=cors.checked(_listed(given, "XLT_CORS_ORIGINS")),
        log_texts=given.get("XLT_LOG_TEXTS", "").lower() in ("1", "true", "yes"),
        state=Path(given["XLT_STATE"]) if given.get("XLT_STATE") else None,
        translators=Path(given["XLT_TRANSLATORS"]) if given.get("XLT_TRANSLATORS") else None,
        synonyms=synonyms.files(
            part for part in given.get("XLT_SYNONYMS", "").split(os.pathsep) if part
        ),
        warm=_listed(given, "XLT_WARM"),
        **_numbers(given),
    )


def bounds() -> Iterator[tuple[str, str, Bound, float]]:
    """Each number: its field, the part of the field if it is one, what is said of it, its default."""
    for each in fields(Environment):
        for part, said in each.metadata.items():
            whole: Any = each.default_factory() if callable(each.default_factory) else each.default
            yield each.name, part, said, getattr(whole, part) if part else whole


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


def _numbers(given: Mapping[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, part, said, default in bounds():
        value = type(default)(_number(given, said, default))
        if part:
            value = replace(out.get(name, Limits()), **{part: value})
        out[name] = value
    return out


def _number(given: Mapping[str, str], said: Bound, default: float) -> float:
    text = given.get(said.variable)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not said.least <= value < float("inf"):
        raise UsageError(
            f"{said.variable}={text[:50]}", f"must be a number of at least {said.least:g}"
        )
    return value


def _listed(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(filter(None, given.get(name, "").replace(" ", "").split(",")))


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
