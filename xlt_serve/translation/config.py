"""Translators from a TOML file: which engines there are, and which serves which language.

deadline = 10.0                 # seconds that a request may take to translate
cache = 10000                   # translations kept in memory
record = "translations.jsonl"   # and on disk, over restarts (default: not)

[engine.opus-zh]
kind = "ctranslate2"            # a folder of `xlt translator fetch` or `convert`
folder = "translators/zh-en"    # beside this file
beam = 1                        # greedy; default 2
device = "cuda"                 # default cpu; or auto
device_index = [0, 1]           # the model on each, a call's batches shared among them
compute_type = "int8_float16"   # default: int8 on the CPU, the fastest elsewhere
max_batch_size = 4096           # padded tokens at a time (batch_type = "examples": texts)
batch = 512                     # texts of a call: several devices need many
timeout = 5.0                   # for a call of up to `batch` texts
least_quality = 0.3             # by the engine's own hint; below it the next one is asked

[engine.apertium]
kind = "apertium"

[engine.libre]
kind = "http"
url = "http://localhost:5000"
api_key_env = "LIBRETRANSLATE_KEY"

[routes]                        # the first is asked first
zh = ["opus-zh", "libre"]
es = ["apertium", "libre"]
default = ["libre"]
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xlt_serve.bundle import digest
from xlt_serve.errors import ConfigError, UsageError, XltError
from xlt_serve.translation import recorded
from xlt_serve.translation.apertium import Apertium
from xlt_serve.translation.breaker import Breaker
from xlt_serve.translation.cache import TranslationCache
from xlt_serve.translation.ctranslate2 import CTranslate2
from xlt_serve.translation.libretranslate import Http
from xlt_serve.translation.protocol import Translator
from xlt_serve.translation.router import LONGEST, Engine, Router
from xlt_serve.translation.statistics import Observe
from xlt_serve.translation.translators import Translators

Values = dict[str, Any]
DEADLINE = 10.0
TIMEOUT = 5.0
TOP: dict[str, type | tuple[type, ...]] = {
    "deadline": (int, float), "cache": int, "longest": int, "record": str,
    "engine": dict, "routes": dict,
}  # fmt: skip
TREATMENT: dict[str, type | tuple[type, ...]] = {
    "kind": str, "timeout": (int, float), "batch": int, "calls": int, "least_quality": (int, float),
    "failures": int, "rest": (int, float),
}  # fmt: skip
OWN: dict[str, dict[str, type | tuple[type, ...]]] = {
    "ctranslate2": {
        "folder": str, "source": str, "target": str, "beam": int, "threads": int, "codes": dict,
        "device": str, "device_index": (int, list), "compute_type": str, "max_batch_size": int,
        "batch_type": str,
        "compute": str,  # what compute_type was called
    },
    "apertium": {"codes": dict},
    "http": {
        "url": str, "api_key_env": str, "languages": list, "codes": dict, "connections": int,
    },
    "recorded": {"file": str},
}  # fmt: skip
HOW = {"threads", "device", "device_index", "max_batch_size", "batch_type", "connections"}
HOW |= {"api_key_env", *TREATMENT} - {"kind", "least_quality"}
"""What changes how fast an engine is, or how patient we are, but not what it says."""
NEEDED = {"ctranslate2": "folder", "http": "url", "recorded": "file"}


def load(
    file: Path, *observers: Observe, patient: bool = False, timeout: float = TIMEOUT
) -> Translators:
    """Engines are opened here, so that what is missing is known at the start; ``observers`` hear what
    becomes of every text. ``patient``: without the deadline of a request, as for files. ``timeout``: of
    engines that have none of their own."""
    raw = _read(file)
    engines: dict[str, Engine] = {}
    kept = file.parent / raw["record"] if "record" in raw else None
    if kept is not None and kept.is_file():
        engines["recorded"] = Engine(recorded.Recorded().add(recorded.read(kept, torn=True)))
    failed = []
    for name, values in raw["engine"].items():
        try:
            engines[name] = _engine(name, {"timeout": timeout} | values, file.parent)
        except XltError as error:
            failed.append(f"engine.{name}: {error}")
    if failed:
        for engine in engines.values():
            engine.translator.close()
        raise ConfigError(file, failed)
    routes = raw.get("routes", {})
    if routes and "recorded" in engines and kept is not None:
        routes = {lg: ["recorded", *names] for lg, names in routes.items()}
    router = Router(
        engines,
        routes,
        TranslationCache(entries=raw.get("cache", 10_000)),
        raw.get("longest", LONGEST),
        recorded.Recorder(kept) if kept is not None else None,
        observers,
    )
    return Translators(router, None if patient else raw.get("deadline", DEADLINE))


def _read(file: Path) -> Values:
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(file, "is not there", "give a TOML file of translators") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(file, f"is not TOML ({error})") from None
    if found := problems(raw):
        raise ConfigError(file, found)
    return raw


def materials(file: Path) -> list[Path]:
    """The files beside the config that translations depend on: tables and models. What is recorded on
    the way is not among them."""
    out = []
    for values in _read(file)["engine"].values():
        for place in (file.parent / values[key] for key in ("file", "folder") if key in values):
            out += _files(place)
    return out


def essence(file: Path) -> dict[str, Any]:
    """All that translations hang on: engines, their settings and models, and who is asked first."""
    raw = _read(file)
    engines = {}
    for name, values in raw["engine"].items():
        engines[name] = {key: value for key, value in values.items() if key not in HOW}
        places = [file.parent / values[key] for key in ("file", "folder") if key in values]
        parts = [part for place in places for part in _files(place) if part.is_file()]
        engines[name] |= {"sha256": [digest(part) for part in parts]} if parts else {}
    return {"engine": engines, **{key: raw[key] for key in ("routes", "longest") if key in raw}}


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        return sorted(part for part in place.rglob("*") if part.is_file())
    return [place]


def problems(raw: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with a config, so that it is mended in one go."""
    out = _misfits("", raw, TOP)
    engines = raw.get("engine", {})
    if not isinstance(engines, dict) or not engines:
        return [*out, "there is no [engine.NAME]"]
    for name, values in engines.items():
        place = f"engine.{name}"
        if not isinstance(values, dict):
            out.append(f"{place} must be a table")
            continue
        kind = values.get("kind")
        if kind not in OWN:
            out.append(f"{place}.kind = {kind!r} must be one of {', '.join(OWN)}")
            continue
        out += _misfits(f"{place}.", values, TREATMENT | OWN[kind])
        if kind in NEEDED and NEEDED[kind] not in values:
            out.append(f"{place}.{NEEDED[kind]} is missing")
        for key in ("timeout", "batch", "calls", "failures", "connections"):
            if isinstance(values.get(key), int | float) and values[key] <= 0:
                out.append(f"{place}.{key} = {values[key]} must be positive")
    if "record" in raw and "recorded" in engines:
        out.append(
            "engine.recorded has the name of the table that `record` keeps: call it otherwise"
        )
    routes = raw.get("routes", {})
    for language, names in routes.items() if isinstance(routes, dict) else []:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            out.append(f"routes.{language} must be a list of engines' names")
            continue
        for name in names:
            if name not in engines:
                known = ", ".join(engines)
                out.append(f"routes.{language} names {name!r}, the engines are {known}")
    if isinstance(raw.get("deadline"), int | float) and raw["deadline"] <= 0:
        out.append(f"deadline = {raw['deadline']} must be positive")
    return out


def _misfits(
    place: str, values: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]]
) -> list[str]:
    out = []
    for key, value in values.items():
        if key not in known:
            out.append(f"{place}{key} is unknown; known are {', '.join(known)}")
        elif not isinstance(value, known[key]) or isinstance(value, bool):
            out.append(f"{place}{key} = {value!r} is of the wrong type")
    return out


def _engine(name: str, values: Values, folder: Path) -> Engine:
    own = {key: value for key, value in values.items() if key in OWN[values["kind"]]}
    if "compute" in own:
        own.setdefault("compute_type", own.pop("compute"))
    make: dict[str, Callable[[], Translator]] = {
        "ctranslate2": lambda: CTranslate2(
            **(own | {"folder": folder / own["folder"], "name": name})
        ),
        "apertium": lambda: Apertium(name=name, **own),
        "http": lambda: _http(name, own, float(values["timeout"])),
        "recorded": lambda: recorded.Recorded(name).add(recorded.read(folder / own["file"])),
    }
    translator = make[values["kind"]]()
    treatment = {
        key: values[key] for key in ("timeout", "batch", "calls", "least_quality") if key in values
    }
    if values["kind"] == "http":
        treatment.setdefault("calls", own.get("connections", 2))
    rest = {key: values[key] for key in ("failures", "rest") if key in values}
    return Engine(translator, breaker=Breaker(**rest), **treatment)


def _http(name: str, own: Values, timeout: float) -> Http:
    key = ""
    if variable := own.pop("api_key_env", ""):
        key = os.environ.get(variable, "")
        if not key:
            raise UsageError(variable, "is not set in the environment", "set it, or leave it out")
    return Http(name=name, api_key=key, timeout=timeout, **own)
