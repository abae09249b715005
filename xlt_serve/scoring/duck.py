"""A function for DuckDB, for those who live in SQL.

    import duckdb
    from xlt_serve.scoring import duck

    connection = duckdb.connect()
    duck.register(connection, "classify", "topics")
    connection.sql("SELECT classify(body).label, count(*) FROM 'reviews.parquet' GROUP BY 1")

It answers with a struct of the fields that `xlt score` adds: `label`, `probability`, `probabilities`, …,
`error`. NULL gives NULL. A text that comes again is answered from memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from xlt_serve import bundle as bundles
from xlt_serve.classifier import Classifier
from xlt_serve.errors import UsageError
from xlt_serve.files.packages import arrow, needed
from xlt_serve.runtime.session import Options
from xlt_serve.scoring import columns
from xlt_serve.scoring.spark import seeded
from xlt_serve.types import Item

MOST = 1 << 16
"""Texts whose answers are held."""


def register(
    connection: Any, name: str = "classify", bundle: str | None = None, **settings: Any
) -> None:
    """A scalar function of a text, or of two where the bundle classifies pairs. ``settings`` are those of
    ``Classifier.predict``; votes are drawn from the seed 0 where none is given."""
    duckdb = needed("duckdb", "xlt_serve.scoring.duck", "duckdb")
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise UsageError(
            type(connection).__name__, "is no connection of DuckDB", "give duckdb.connect(…)"
        )
    classifier = Classifier(bundles.load(bundle), Options())
    function = SqlFunction(classifier, seeded(settings))
    sides = 2 if classifier.bundle.manifest.pair else 1
    connection.create_function(
        name,
        function.of_pairs if sides == 2 else function.of_texts,
        [duckdb.sqltype("VARCHAR")] * sides,
        duckdb.sqltype(_sql(function.kind)),
        type="arrow",
    )


class SqlFunction:
    """Arrow arrays of texts to one of structs; the answers last asked for are held."""

    def __init__(self, classifier: Classifier, settings: dict[str, Any], most: int = MOST) -> None:
        self._classifier, self._settings, self._most = classifier, settings, most
        self._names = columns.added(str(settings.get("mode", "plain")), classifier.bundle.manifest)
        self._held: OrderedDict[Item, dict[str, Any]] = OrderedDict()
        labels = self._labels = classifier.labels
        pa = arrow("DuckDB")
        self.kind = pa.struct([(name, columns.arrow_type(name, labels)) for name in self._names])

    def of_texts(self, texts: Any) -> Any:
        return self._structs(texts.to_pylist())

    def of_pairs(self, first: Any, second: Any) -> Any:
        return self._structs(list(zip(first.to_pylist(), second.to_pylist(), strict=True)))

    def _structs(self, items: Sequence[Item]) -> Any:
        new = [item for item in dict.fromkeys(items) if item not in self._held]
        sizes = self._classifier.sizes(new)
        new = [new[number] for number in sorted(range(len(new)), key=lambda n: -sizes[n])]
        fresh = dict(zip(new, self._classifier.predict(new, **self._settings), strict=True))
        known = {item: columns.values(answer, self._names) for item, answer in fresh.items()}
        rows = [known[item] if item in known else self._held[item] for item in items]
        self._held.update(known)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        arrays = [
            columns.arrow_values(name, [row[name] for row in rows], self._labels)
            for name in self._names
        ]
        return arrow("DuckDB").StructArray.from_arrays(arrays, fields=list(self.kind))


def _sql(kind: Any) -> str:
    """DuckDB's name of an Arrow type."""
    types = arrow("DuckDB").types
    if types.is_struct(kind):
        fields = (f"{_quoted(field.name)} {_sql(field.type)}" for field in kind)
        return f"STRUCT({', '.join(fields)})"
    named = {"string": "VARCHAR", "double": "DOUBLE", "int64": "BIGINT", "bool": "BOOLEAN"}
    return named[str(kind)]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
