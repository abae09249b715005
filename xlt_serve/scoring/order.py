"""What is asked for, and what of it the answer depends on."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from xlt_serve import translation
from xlt_serve.bundle import Bundle, digest
from xlt_serve.errors import DataError, UsageError
from xlt_serve.files import codecs, dialect, places
from xlt_serve.files.places import OUTPUTS, PIPE, Source
from xlt_serve.files.window import MOST_ROWS
from xlt_serve.runtime.batching import default_budget
from xlt_serve.scoring import columns, tolerance
from xlt_serve.scoring.choice import ALL, Choice

FORMAT = 1
"""Of what a run leaves behind for the next; another number is never gone on with."""
RECEIPT = ".score.json"
"""Beside the output: what it was made from and what is in it."""
ENGINES = ("local", "ray")
LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*")
ADDED = "columns"
"""Of an order: columns that modes have got since outputs were first written."""
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "tokenizers")
"""Another version of these may give other numbers or other tokens."""


@dataclass(frozen=True, slots=True)
class Order:
    """One call of ``xlt score``. ``source``: a place or several; ``settings`` are those of
    ``Classifier.predict``; ``text``, ``pair`` and ``translation`` name columns, ``keep`` or ``drop`` those
    of the input's that are written or not, ``key`` one by which rows of a finished output are found
    again; ``max_errors``: see ``tolerance``; ``work``: the folder for what is not finished yet, by default
    beside the output; ``workers``: cores, or Ray actors, 0 for all. ``translators``: a TOML file of
    engines; ``tables``: language → file of synonyms; ``encoding`` and ``delimiter``: of text files that
    are not in UTF-8, of CSV that has another than a comma; ``devices``: numbers of GPUs."""

    source: str | tuple[str, ...]
    out: str
    bundle: str | None = None
    text: str | None = None
    pair: str | None = None
    translation: str | None = None
    translators: str | None = None
    tables: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    in_format: str | None = None
    encoding: str = ""
    delimiter: str = ""
    out_format: str | None = None
    prefix: str = "xlt_"
    window: int = MOST_ROWS
    budget: int = 0  # 0: what suits the provider
    provider: str = "cpu"
    devices: tuple[int, ...] = ()
    engine: str = "local"
    workers: int = 0
    keep: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    key: str | None = None
    max_errors: str | None = None
    strict: bool = False
    overwrite: bool = False
    work: str | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UsageError(f"engine={self.engine!r}", f"must be one of {', '.join(ENGINES)}")
        if PIPE in self.sources and len(self.sources) > 1:
            raise UsageError("-", "a pipe is the only input", "score it by itself")
        if self.keep is not None and self.drop:
            raise UsageError("keep and drop", "say the same in two ways", "give one of them")
        if self.key and PIPE in (*self.sources, self.out):
            raise UsageError(
                f"--key {self.key}", "is for files that are scored again", "leave it out"
            )
        tolerance.parsed(self.max_errors)
        self._refuse_languages()
        if self.engine == "ray" and PIPE in (*self.sources, self.out):
            raise UsageError(
                "-", "a pipe has one end; engine ray reads and writes files", "use engine local"
            )
        if self.devices and self.engine == "ray":
            raise UsageError(
                "--device", "is for engine local: Ray gives each actor a GPU itself", "leave it out"
            )
        if not self.budget:
            object.__setattr__(self, "budget", default_budget(self.provider))
        if self.window < 1:
            raise UsageError(f"window={self.window}", "must be at least 1 row")
        if self.workers < 0:
            raise UsageError(f"workers={self.workers}", "must be 0 (all cores) or more")

    def _refuse_languages(self) -> None:
        """A name instead of a code would stand in every row, and be no language to any translator."""
        told = self.settings.get("language") or ()
        for code in (told,) if isinstance(told, str) else told:
            if not LANGUAGE.fullmatch(code):
                raise UsageError(f"language={code}", "is no code of a language", "write it as de")

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else tuple(self.source)

    @property
    def choice(self) -> Choice:
        return Choice(self.keep, self.drop)

    @property
    def mode(self) -> str:
        return str(self.settings.get("mode", "plain"))


@dataclass(frozen=True, slots=True)
class Unit:
    """One file of the output, and the files whose rows it has. ``keyed``: columns in the folders'
    names are written out, since the output no longer has the folders."""

    name: str
    sources: tuple[Source, ...]
    format: str
    codec: str | None
    keyed: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """``folder``: the output is a folder with a file for each of the input's."""

    units: tuple[Unit, ...]
    folder: bool


def layout(order: Order) -> Layout:
    """Several files go into one where OUT names a file, into a folder of the same names where not."""
    found = _layout(order, *_found(order))
    _refuse_double(found.units)
    _refuse_inputs(order, found)
    return found


def _found(order: Order) -> tuple[list[Source], bool]:
    """The files of all inputs, each once, and whether they may be several."""
    if not order.sources:
        raise UsageError("no input", "there is nothing to score", "give a file, or - for a pipe")
    found = [places.find(place, order.in_format) for place in order.sources]
    written = dialect.said(order.encoding, order.delimiter).check()
    sources = [dialect.as_said(source, written) for part, _ in found for source in part]
    given: set[str] = set()
    for source in sources if len(found) > 1 else ():
        if (place := places.canonical(source.url)) in given:
            raise UsageError(source.url, "is given twice", "leave one out")
        given.add(place)
    kinds = sorted({source.format for source in sources})
    if len(kinds) > 1:
        raise DataError(
            " ".join(order.sources),
            f"has files of several formats: {', '.join(kinds)}",
            "score them one format at a time",
        )
    return sources, len(found) > 1 or found[0][1]


def _layout(order: Order, sources: Sequence[Source], several: bool) -> Layout:
    told, codec = (None, None) if order.out == PIPE else codecs.told_by(order.out)
    format = order.out_format or told
    name_of_folder = order.out.endswith("/") or (told is None and order.out != PIPE and several)
    if name_of_folder:
        given = sources[0].format
        format = format or ("jsonl" if given == "txt" else given)
        _refuse_unknown(format)
        units = tuple(
            Unit(_renamed(source, format), (source,), format, _codec(source, format), False)
            for source in sources
        )
        return Layout(units, True)
    if format is None and order.out == PIPE:
        format = "jsonl" if sources[0].format in ("txt", "parquet") else sources[0].format
    if format is None:
        raise UsageError(
            order.out,
            f"has no known ending ({', '.join(codecs.FORMATS)})",
            "say what it shall be with --out-format, or end it in / for a folder",
        )
    _refuse_unknown(format)
    if format == "parquet" and order.out == PIPE:
        raise UsageError("-", "Parquet can't be written to a pipe", "give a file")
    if format == "parquet" and codec:
        raise UsageError(order.out, "Parquet is compressed inside", "leave out the second ending")
    return Layout((Unit("", tuple(sources), format, codec, several),), False)


def essence(order: Order, bundle: Bundle, units: Sequence[Unit]) -> dict[str, Any]:
    """All that the output's bytes depend on, by the name that the user knows it by."""
    kept = ("text", "pair", "translation", "prefix", "window", "budget", "provider", "engine")
    # What is new here is told only where it is used: what was begun before can be gone on with.
    later: dict[str, Any] = {}
    later |= {key: value for key in ("encoding", "delimiter") if (value := getattr(order, key))}
    if order.choice != ALL:
        later |= {"keep": order.keep and list(order.keep), "drop": list(order.drop)}
    there = columns.added(order.mode, bundle.manifest)
    if new := [name for name in columns.NEWER if name in there]:
        later[ADDED] = new
    settings = {
        key: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for key, value in order.settings.items()
    }
    return {
        "format": FORMAT,
        "xlt-serve": _version("xlt-serve") or "source",
        **{name: _version(name) for name in PACKAGES},
        "input": [places.identity(source) for unit in units for source in unit.sources],
        "bundle": f"{bundle.manifest.name} {bundle.manifest.version}",
        "output": [[unit.name, unit.format, unit.codec] for unit in units],
        **{key: getattr(order, key) for key in kept},
        "in-format": sorted({source.format for unit in units for source in unit.sources}),
        "translators": order.translators and _translators(Path(order.translators)),
        "synonyms": {language: digest(Path(file)) for language, file in order.tables.items()},
        **later,
        **settings,
    }


def _translators(file: Path) -> list[str]:
    """Of the config, and of the tables and models that it names."""
    parts = [*translation.materials(file), file]  # which also says what is wrong with the config
    return [digest(part) for part in parts if part.is_file()]


def difference(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of what is not as it was; files of the input by their own names."""
    out = []
    for key in sorted(before.keys() | now.keys()):
        first, second = before.get(key), now.get(key)
        if first == second:
            continue
        if key == "input" and _named(first) and _named(second):
            old = {entry["name"]: entry for entry in first}
            new = {entry["name"]: entry for entry in second}
            names = sorted(n for n in old.keys() | new.keys() if old.get(n) != new.get(n))
            out += [f"input {name}" for name in names[:3]] + ["…"] * (len(names) > 3)
        elif isinstance(first, list | dict) or isinstance(second, list | dict):
            out.append(key)
        else:
            out.append(f"{key} ({first} before, {second} now)")
    return out


def _named(entries: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Each by a name of its own."""
    return isinstance(entries, list) and len({e["name"] for e in entries}) == len(entries)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # not there, or only as source
        return None


def output_name(out: str) -> str:
    """OUT without its last slash, and with a name of its own: files go beside it."""
    name = out.rstrip("/")
    if not places.is_remote(out) and Path(name).name in ("", ".."):  # "." and the like
        name = str(Path(out).resolve())
        if not Path(name).name:
            raise UsageError(out, "is the root of the file system", "give a folder within it")
    return name


def targets(order: Order, layout: Layout) -> list[str]:
    """Where each unit goes, in order."""
    name = output_name(order.out)
    return [f"{name}/{unit.name}" if layout.folder else name for unit in layout.units]


def _refuse_double(units: Sequence[Unit]) -> None:
    """Two inputs with one output: the second would replace the first."""
    taken: dict[str, Unit] = {}
    remedy = "rename one of them, or name a file as OUT, which takes the rows of all"
    for unit in units:
        if other := taken.get(unit.name):
            both = f"{other.sources[0].url} and {unit.sources[0].url}"
            raise UsageError(both, f"would both be written to {unit.name}", remedy)
        taken[unit.name] = unit
    for unit in units:
        for parent in PurePosixPath(unit.name).parents:
            if other := taken.get(str(parent)):
                both = f"{other.sources[0].url} and {unit.sources[0].url}"
                raise UsageError(both, f"would need {other.name} as a file and as a folder", remedy)


def _refuse_inputs(order: Order, layout: Layout) -> None:
    """An output must replace no input, nor lie where the next run would read it as one."""
    if order.out == PIPE:
        return
    name = output_name(order.out)
    out = PurePosixPath(places.canonical(name))
    for place in order.sources:
        if place == PIPE or places.kind(place) != "folder":
            continue
        if out.is_relative_to(places.canonical(place)):
            raise UsageError(order.out, f"lies within the input {place}", "choose another place")
    read = [s.url for unit in layout.units for s in unit.sources if not s.is_pipe]
    read += [*order.tables.values(), *([order.translators] if order.translators else [])]
    sources = {places.canonical(file) for file in read}
    taken: dict[str, str] = {}
    for target in (*targets(order, layout), name + RECEIPT):
        if places.canonical(target) in sources:
            itself = order.out if target == name else target
            raise UsageError(itself, "is the input itself", "choose another name")
        folder, _, last = target.rpartition("/")
        # A link that is a file is replaced itself; one that is a folder is followed.
        other = taken.setdefault(f"{places.canonical(folder or '.')}/{last}", target)
        if other != target:
            raise UsageError(
                f"{other} and {target}", "are one file, by a link", "choose another place"
            )


def _refuse_unknown(format: str) -> None:
    if format not in OUTPUTS:
        raise UsageError(f"format {format}", f"can't be written; known: {', '.join(OUTPUTS)}")


def _codec(source: Source, format: str) -> str | None:
    return None if format == "parquet" else source.codec


def _renamed(source: Source, format: str) -> str:
    """The same name, with the ending of what is in it."""
    if source.format == format:
        return source.name
    ending = {codec: e for e, codec in codecs.ENDINGS.items()}
    base = source.name.removesuffix(ending.get(source.codec or "", "\0"))
    base = base.rsplit(".", 1)[0] if "." in base.rsplit("/", 1)[-1] else base
    return f"{base}.{format}{ending.get(_codec(source, format) or '', '')}"
