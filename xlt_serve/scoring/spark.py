"""A recipe for Spark: the same predictions as a function for ``DataFrame.mapInPandas``.

    from xlt_serve.scoring import spark

    scored = frame.mapInPandas(
        spark.scorer("topics", text="body"), schema=spark.schema(frame.schema, "topics")
    )
    scored.write.parquet("scored")

Each Python worker of Spark opens the bundle once and keeps it; ship the package and the bundle to the
executors (``--archives``, or a path that all of them see). Batches are Spark's: give it larger ones
with ``spark.sql.execution.arrow.maxRecordsPerBatch`` (10,000 is its default and enough). Resuming and
exactly-once are Spark's own business. Numbers and truth values have their types; what has parts of its
own (``probabilities``, ``votes``, ``error``) is JSON text. Votes are drawn from the seed 0 where none is
given, so that a task that Spark tries again answers as it did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve import modes
from xlt_serve.classifier import Classifier
from xlt_serve.runtime.session import Options
from xlt_serve.scoring import columns
from xlt_serve.signing import key_files
from xlt_serve.signing.key_files import Signers

TYPES = {
    "probability": "double",
    "tokens": "bigint",
    "windows": "bigint",
    "truncated": "boolean",
    "draws": "bigint",
    "seed": "bigint",
    "lower_bound": "double",
    "mixed": "boolean",
    "ratio": "double",
    "agreement": "double",
    "weight": "double",
    "quality": "double",
}
PANDAS = {"double": "Float64", "bigint": "Int64", "boolean": "boolean"}
"""Types that know nulls: a large whole number would lose its last digits as a float beside a null."""


def schema(given: Any, bundle: str | None = None, prefix: str = "xlt_", mode: str = "plain") -> str:
    """The DDL of the result: the columns of ``given`` (a Spark schema) and those that are added."""
    # A bundle that is not there is better missed here than on an executor.
    manifest = bundles.read_manifest(bundles.find(bundle) / bundles.MANIFEST)
    kept = [f"`{field.name}` {field.dataType.simpleString()}" for field in given.fields]
    new = [
        f"`{prefix}{name}` {TYPES.get(name, 'string')}" for name in columns.added(mode, manifest)
    ]
    return ", ".join(kept + new)


def scorer(
    bundle: str | None = None,
    *,
    text: str = "text",
    pair: str | None = None,
    prefix: str = "xlt_",
    **settings: Any,
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function of pandas frames. ``settings`` are those of ``Classifier.predict``."""
    settings = seeded(settings)
    signers = key_files.required()  # variables stay on the machine that they are set on

    def score(frames: Iterator[Any]) -> Iterator[Any]:
        classifier = opened(bundle, signers)
        manifest = classifier.bundle.manifest
        names = columns.added(str(settings.get("mode", "plain")), manifest)
        for frame in frames:
            items: list[object] = [_text(value) for value in frame[text]]
            if pair:
                items = list(zip(items, map(_text, frame[pair]), strict=True))
            found = [columns.values(p, names) for p in classifier.predict(items, **settings)]
            series, added = type(frame.index.to_series()), {}
            for name in names:
                values = [row[name] for row in found]
                kind: str | None = PANDAS.get(TYPES.get(name, ""))
                if kind is None:
                    values = [None if v is None else _flat(v) for v in values]
                added[prefix + name] = series(values, index=frame.index, dtype=kind or object)
            yield frame.assign(**added)

    return score


def seeded(settings: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """With a seed, if votes are drawn and none is given."""
    mode = modes.MODES[str(settings.get("mode", "plain"))]
    if not mode.repeats or getattr(modes.settings(**settings).options, "seed", 0) is not None:
        return settings
    if given := settings.get(mode.keyword):
        return settings | {mode.keyword: replace(given, seed=seed)}
    return settings | {"seed": seed}


@cache
def opened(bundle: str | None, signers: Signers) -> Classifier:
    """Once in a worker process. One thread: Spark runs as many workers as there are cores."""
    return Classifier(bundles.load(bundle, signers or None), Options(threads=1))


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _flat(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
