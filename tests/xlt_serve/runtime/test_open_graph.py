from __future__ import annotations

import dataclasses

import pytest

from xlt_serve.bundle import Bundle
from xlt_serve.errors import BundleError, UsageError
from xlt_serve.runtime.open_graph import buckets_of, described, open_graph
from xlt_serve.runtime.session import Options, Session


def test_the_cpu_gets_a_plain_session(graph_bundles: dict[str, Bundle]) -> None:
    bundle = graph_bundles["bert"]
    for name, graph in bundle.manifest.graphs.items():
        session = open_graph(bundle, name, Options(threads=1), 1024)
        assert type(session) is Session
        assert session.provider == "CPUExecutionProvider"
        assert session.inputs == graph.inputs


def test_a_precision_other_than_the_manifests_is_refused(graph_bundles: dict[str, Bundle]) -> None:
    bundle = graph_bundles["bert"]
    plain = dataclasses.replace(bundle.manifest.graphs["plain"], precision="fp16")
    wrong = Bundle(bundle.path, dataclasses.replace(bundle.manifest, graphs={"plain": plain}))
    with pytest.raises(BundleError, match=r"holds fp32 weights, the manifest says fp16; export"):
        open_graph(wrong, "plain", None, 1024)
    with pytest.raises(UsageError, match="graph paired: is none of the bundle's: plain"):
        described(wrong, "paired")


def test_buckets_follow_the_lengths_that_export_measured(graph_bundles: dict[str, Bundle]) -> None:
    bundle = graph_bundles["bert"]
    assert buckets_of(bundle, 1024).lengths == (8, 24, 32, 64)
    without = Bundle(bundle.path, dataclasses.replace(bundle.manifest, checks={}))
    assert buckets_of(without, 1024).lengths == (16, 32, 64)
