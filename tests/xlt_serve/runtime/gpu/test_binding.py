"""The binding that GPUs use, run for real on the CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests import graphs
from xlt_serve.bundle import Bundle
from xlt_serve.errors import UsageError
from xlt_serve.runtime.gpu.binding import BoundSession
from xlt_serve.runtime.gpu.buckets import choose
from xlt_serve.runtime.open_graph import described, io_of
from xlt_serve.runtime.session import Options, Session

ALL = [
    (name, graph)
    for name in ("xlm-roberta", "bert", "prompts")
    for graph in graphs.KINDS
    if (name, graph) != ("prompts", "paired")
]


def both(bundle: Bundle, graph: str) -> tuple[BoundSession, Session]:
    plain = Session(bundle.file(f"{graph}.onnx"), Options(threads=1))
    return graphs.bound(bundle, graph), plain


def assert_equal(given: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(given) == list(expected)
    for name, values in expected.items():
        assert given[name].dtype == values.dtype
        np.testing.assert_allclose(given[name], values, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "graph"), ALL)
def test_it_computes_what_run_computes(
    graph_bundles: dict[str, Bundle], name: str, graph: str
) -> None:
    """Random batches, padded up to buckets, split where they are too many rows."""
    bundle = graph_bundles[name]
    inputs = described(bundle, graph).inputs
    bound, plain = both(bundle, graph)
    generator = np.random.default_rng(0)
    for most in (2, 10, 90, 90, 200):
        feeds = graphs.feeds(
            inputs, graphs.sizes(inputs, generator, most), bundle.manifest.pad_id, generator
        )
        assert_equal(bound.run(feeds), plain.run(feeds))


@pytest.mark.parametrize("graph", graphs.KINDS)
def test_a_batch_that_fills_its_bucket_is_equal_bit_for_bit(
    graph_bundles: dict[str, Bundle], graph: str
) -> None:
    bundle = graph_bundles["bert"]
    inputs = described(bundle, graph).inputs
    bound, plain = both(bundle, graph)
    sizes = dict.fromkeys(("batch", "texts", "draws"), 4) | dict.fromkeys(
        ("length", "source_length"), 32
    )
    feeds = graphs.feeds(inputs, sizes, bundle.manifest.pad_id, np.random.default_rng(1))
    expected = plain.run(feeds)
    for name, values in bound.run(feeds).items():
        np.testing.assert_array_equal(values, expected[name])


def test_buffers_are_used_again_and_nothing_of_the_last_batch_is_left(
    graph_bundles: dict[str, Bundle],
) -> None:
    """A small batch after a large one in the same buffers."""
    bundle = graph_bundles["xlm-roberta"]
    inputs = described(bundle, "plain").inputs
    bound, plain = both(bundle, "plain")
    generator = np.random.default_rng(2)
    batches = [
        graphs.feeds(inputs, {"batch": rows, "length": length}, bundle.manifest.pad_id, generator)
        for rows, length in ((8, 32), (5, 20), (7, 31), (5, 20))
    ]
    first = bound.run(batches[0])
    kept = {name: values.copy() for name, values in first.items()}
    (buffers,) = bound._buffers.values()
    addresses = [value.data_ptr() for value in buffers.inputs.values()]
    for feeds in batches[1:]:
        assert_equal(bound.run(feeds), plain.run(feeds))
    assert list(bound._buffers.values()) == [buffers]
    assert [value.data_ptr() for value in buffers.inputs.values()] == addresses
    # What was handed out belongs to its owner, not to the next run.
    for name, values in kept.items():
        np.testing.assert_array_equal(first[name], values)


@pytest.mark.parametrize("graph", graphs.KINDS)
def test_many_threads(graph_bundles: dict[str, Bundle], graph: str) -> None:
    bundle = graph_bundles["bert"]
    inputs = described(bundle, graph).inputs
    bound, plain = both(bundle, graph)
    generator = np.random.default_rng(3)
    batches = [
        graphs.feeds(inputs, graphs.sizes(inputs, generator, 6), bundle.manifest.pad_id, generator)
        for _ in range(60)
    ]
    expected = [plain.run(feeds) for feeds in batches]
    with ThreadPoolExecutor(8) as pool:
        for given, wanted in zip(pool.map(bound.run, batches), expected, strict=True):
            assert_equal(given, wanted)


def test_no_more_buffers_are_kept_than_asked(graph_bundles: dict[str, Bundle]) -> None:
    bundle = graph_bundles["xlm-roberta"]
    inputs = described(bundle, "plain").inputs
    bound = graphs.bound(bundle, "plain", sets=2)
    plain = Session(bundle.file("plain.onnx"))
    generator = np.random.default_rng(4)
    for rows, length in ((1, 8), (8, 8), (1, 60), (8, 60), (1, 8)):
        sizes = {"batch": rows, "length": length}
        feeds = graphs.feeds(inputs, sizes, bundle.manifest.pad_id, generator)
        assert_equal(bound.run(feeds), plain.run(feeds))
        assert len(bound._buffers) <= 2


def test_more_texts_than_rows_are_split_by_their_draws(graph_bundles: dict[str, Bundle]) -> None:
    bundle = graph_bundles["xlm-roberta"]
    inputs = described(bundle, "perturbed").inputs
    bound = graphs.bound(bundle, "perturbed", choose({}, 64, 256, rows=4))
    plain = Session(bundle.file("perturbed.onnx"))
    generator = np.random.default_rng(5)
    for texts, draws in ((30, 2), (3, 30), (20, 20), (9, 1)):
        sizes = {"texts": texts, "draws": draws, "length": 40}
        feeds = graphs.feeds(inputs, sizes, bundle.manifest.pad_id, generator)
        assert_equal(bound.run(feeds), plain.run(feeds))


def test_a_text_longer_than_the_buckets_is_refused(graph_bundles: dict[str, Bundle]) -> None:
    bundle = graph_bundles["xlm-roberta"]
    feeds = io_of(bundle, "plain", described(bundle, "plain")).example({"batch": 1, "length": 65})
    with pytest.raises(UsageError, match="65 tokens: are more than the longest bucket, 64"):
        graphs.bound(bundle, "plain").run(feeds)
