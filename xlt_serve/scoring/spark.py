"""A recipe for Spark: the same predictions as a function for ``DataFrame.mapInPandas``.

    from xlt_serve.scoring import spark

    scored = frame.mapInPandas(
        spark.scorer("topics", text="body"), schema=spark.schema(frame.schema, "topics")
    )
    scored.write.parquet("scored")

Each Python worker of Spark opens the bundle once and keeps it; ship the package and the bundle to the
executors (``--archives``, or a path that all of them see). Batches are Spark's: give it larger ones
with ``spark.sql.execution.arrow.maxRecordsPerBatch`` (10,000 is its default and enough). Resuming and
exactly-once are Spark's own business; ``probabilities`` is JSON text, everything else has its type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.classifier import Classifier
from xlt_serve.runtime.session import Options
from xlt_serve.scoring import columns
from xlt_serve.signing import key_files
from xlt_serve.signing.key_files import Signers

TYPES = {"probability": "double", "tokens": "bigint", "windows": "bigint", "truncated": "boolean"}


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
            added = {}
            for name in names:
                values = [row[name] for row in found]
                if name not in TYPES:
                    values = [None if v is None else _flat(v) for v in values]
                added[prefix + name] = values
            yield frame.assign(**added)

    return score


@cache
def opened(bundle: str | None, signers: Signers) -> Classifier:
    """Once in a worker process. One thread: Spark runs as many workers as there are cores."""
    return Classifier(bundles.load(bundle, signers or None), Options(threads=1))


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _flat(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
