"""The graphs of a bundle, open and ready for batches of rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xlt_serve.bundle import Bundle
from xlt_serve.errors import BundleError
from xlt_serve.runtime.batching import plan
from xlt_serve.runtime.graph_io import GRAPHS, GraphIO
from xlt_serve.runtime.open_graph import open_graph
from xlt_serve.runtime.session import Options, Session
from xlt_serve.runtime.steps import Outputs, RowOutputs, RunRequest, join


class Runner:
    """One open graph: rows of its own type in, named outputs [rows, …] out; logits of all ``labels``,
    where their number is given."""

    def __init__(self, session: Session, io: GraphIO[Any], labels: int | None = None) -> None:
        self.session, self.io, self.labels = session, io, labels

    def run(self, rows: Sequence[Any], padding: int = 0) -> Outputs:
        """``padding``: columns more than the rows need; see ``GraphIO.feeds``."""
        outputs = self.session.run(self.io.feeds(rows, padding))
        for name in self.io.logits if self.labels is not None else ():
            if outputs[name].shape != (len(rows), self.labels):
                shape = "×".join(map(str, outputs[name].shape))
                raise BundleError(
                    name,
                    f"is {shape} for {len(rows)} rows, {self.labels} labels",
                    "export it again",
                )
        return outputs


class Runners:
    """The runner of each graph, opened when it is first asked for: most requests are plain, and a
    graph takes memory. May be used from several threads.

    A ``single_threaded`` runner is a second session with one thread, so that each core can run a
    batch of its own. It holds packed weights of its own."""

    def __init__(self, bundle: Bundle, options: Options | None, budget: int) -> None:
        self.bundle, self.options, self.budget = bundle, options, budget
        # One lock for each: while a graph opens, the others run.
        self._opening = {graph: threading.Lock() for graph in GRAPHS}
        self._open: dict[tuple[str, bool], Runner] = {}

    def of(self, graph: str, single_threaded: bool = False) -> Runner:
        if (runner := self._open.get((graph, single_threaded))) is not None:
            return runner
        with self._opening[graph]:
            if (graph, single_threaded) not in self._open:
                self._open[graph, single_threaded] = self._opened(graph, single_threaded)
            return self._open[graph, single_threaded]

    def run(self, request: RunRequest) -> RowOutputs:
        """All rows of a request, in batches of similar length within the budget."""
        runner = self.of(request.graph)
        parts = []
        for batch in plan([row.length for row in request.rows], self.budget):
            parts.append((batch, runner.run([request.rows[i] for i in batch])))
        return join(parts, len(request.rows))

    def _opened(self, graph: str, single_threaded: bool) -> Runner:
        if graph not in self.bundle.manifest.graphs:
            raise BundleError(self.bundle.path, f"has no {graph} graph", "export it again")
        options = self.options or Options()
        if single_threaded:
            options = replace(options, threads=1)
        session = open_graph(self.bundle, graph, options, self.budget)
        manifest = self.bundle.manifest
        return Runner(session, GRAPHS[graph](session.dims, manifest.pad_id), len(manifest.labels))
