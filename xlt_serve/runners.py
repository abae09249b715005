"""The graphs of a bundle, open and ready for batches of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from xlt_serve.batching import plan
from xlt_serve.bundle import Bundle
from xlt_serve.errors import BundleError
from xlt_serve.feeds import feeds
from xlt_serve.graphs import open_graph
from xlt_serve.noisy import NoisyRunner
from xlt_serve.paired import PairedRunner
from xlt_serve.session import Options, Session
from xlt_serve.steps import Ask, Outputs, join
from xlt_serve.tokens import Piece


class Runner(Protocol):
    """One graph: a batch of its own kind of rows in, named outputs [rows, …] out."""

    session: Session

    def run(self, rows: Sequence[Any]) -> Outputs: ...


class PlainRunner:
    """Rows are ``Piece``s; the output is ``logits``."""

    def __init__(self, session: Session, pad_id: int) -> None:
        self.session, self.pad_id = session, pad_id

    def run(self, rows: Sequence[Piece]) -> Outputs:
        return self.session.run(feeds(rows, self.session, self.pad_id))


KINDS: dict[str, Callable[[Session, int], Runner]] = {
    "plain": PlainRunner,
    "perturbed": NoisyRunner,
    "paired": PairedRunner,
}


class Runners:
    """The runner of each graph, opened when it is first asked for: most requests are plain, and a
    graph takes memory. May be used from several threads. A ``narrow`` one runs on the core that asks
    it, for several runs at once: another session, with packed weights of its own."""

    def __init__(self, bundle: Bundle, options: Options | None, budget: int) -> None:
        self.bundle, self.options, self.budget = bundle, options, budget
        # One lock for each: while a graph opens, the others run.
        self._opening = {graph: threading.Lock() for graph in KINDS}
        self._open: dict[tuple[str, bool], Runner] = {}

    def of(self, graph: str, narrow: bool = False) -> Runner:
        if (runner := self._open.get((graph, narrow))) is not None:
            return runner
        with self._opening[graph]:
            if (graph, narrow) not in self._open:
                self._open[graph, narrow] = self._opened(graph, narrow)
            return self._open[graph, narrow]

    def run(self, ask: Ask) -> Outputs:
        """All rows of an ask, in batches of similar length within the budget."""
        runner = self.of(ask.graph)
        parts = []
        for batch in plan([row.length for row in ask.rows], self.budget):
            parts.append((batch, runner.run([ask.rows[i] for i in batch])))
        return join(parts, len(ask.rows))

    def _opened(self, graph: str, narrow: bool) -> Runner:
        if graph not in self.bundle.manifest.graphs:
            raise BundleError(self.bundle.path, f"has no {graph} graph", "export it again")
        options = self.options or Options()
        if narrow:
            options = replace(options, threads=1)
        session = open_graph(self.bundle, graph, options, self.budget)
        return KINDS[graph](session, self.bundle.manifest.pad_id)
