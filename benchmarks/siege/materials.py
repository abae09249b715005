"""What attacks need: bundles that can, bundles that can't, tables, a log that nobody reads."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import psutil

from xlt_serve import bundle as bundles

WORDS = {"goal": ["score"], "score": ["goal"], "match": ["game"], "game": ["match"]}
PIPE_SIZE = 262_144
"""Bytes of a log that nobody reads: some hundred lines, so that it is full once the attack begins."""


def nothing(folder: Path) -> dict[str, str]:
    return {}


def judge(folder: Path) -> dict[str, str]:
    """A bundle for zero-shot beside those that ship. Its labels mean nothing, its times do: the shipped
    weights, called a judge of entailment."""
    made = folder / "judge"
    source = bundles.load("topics")
    shutil.copytree(source.path, made)
    others = (f"other {number}" for number in range(len(source.manifest.labels) - 2))
    manifest = replace(
        source.manifest,
        name="judge",
        pair=True,
        labels=("entailment", "contradiction", *others),
        graphs={"plain": source.manifest.graphs["plain"]},
        noise={},
        scores={},
        checks={},
    )
    bundles.save(made, manifest)
    return {"XLT_BUNDLES": ",".join([*bundles.shipped(), f"judge={made.absolute()}"])}


def synonyms(folder: Path) -> dict[str, str]:
    file = folder / "en.json"
    file.write_text(json.dumps(WORDS))
    return {"XLT_SYNONYMS": f"en={file.absolute()}"}


def translators(folder: Path) -> dict[str, str]:
    """An engine that is never there: languages are counted all the same."""
    file = folder / "translators.toml"
    file.write_text(
        '[engine.away]\nkind = "http"\nurl = "http://127.0.0.1:9"\n\n[routes]\ndefault = ["away"]\n'
    )
    return {"XLT_TRANSLATORS": str(file.absolute())}


def everything(folder: Path) -> dict[str, str]:
    """All modes, for requests of every kind."""
    return judge(folder) | synonyms(folder)


def own_copy(folder: Path) -> dict[str, str]:
    copied(folder / "copy", "a copy that somebody may alter")
    return {"XLT_BUNDLES": f"topics={(folder / 'copy').absolute()}"}


def copied(folder: Path, notes: str) -> Path:
    """The shipped bundle under another version."""
    shipped = bundles.load("topics")
    shutil.copytree(shipped.path, folder)
    bundles.save(folder, replace(shipped.manifest, notes=notes))
    return folder


def swaps(folder: Path) -> dict[str, str]:
    """Bundles to swap in: a good one, one with NaN in its scores, one whose graph never ends."""
    copied(folder / "good", "good")
    raw = (copied(folder / "nan", "NaN") / bundles.MANIFEST).read_text(encoding="utf-8")
    manifest = json.loads(raw)
    manifest["scores"] = {"dev": {"en": {"accuracy": float("nan")}}}
    (folder / "nan" / bundles.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    looping(copied(folder / "loops", "loops"))
    return {}


def looping(folder: Path) -> None:
    """Give a bundle a plain graph that runs for ever."""
    import onnx
    from onnx import TensorProto, helper

    described = bundles.read_manifest(folder / bundles.MANIFEST)
    count = len(described.labels)
    scalar = {
        "most": helper.make_tensor("most", TensorProto.INT64, [], [2**62]),
        "yes": helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        "start": helper.make_tensor("start", TensorProto.FLOAT, [1, count], [0.0] * count),
    }
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Identity", ["value"], ["same"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("value", TensorProto.FLOAT, [1, count]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("same", TensorProto.FLOAT, [1, count]),
        ],
    )
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in described.graphs["plain"].inputs
    ]
    graph = helper.make_graph(
        [helper.make_node("Loop", ["most", "yes", "start"], ["logits"], body=body)],
        "loops",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", count])],
        initializer=list(scalar.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "plain.onnx")
    plain = replace(described.graphs["plain"], precision="fp32")
    bundles.save(folder, replace(described, graphs={"plain": plain}, noise={}))


def stalled_log(folder: Path) -> dict[str, str]:
    """A pipe with a reader that never reads; it is open as long as this process."""
    pipe = folder / "log"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(OSError):
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    return {"XLT_SIEGE_LOG": str(pipe.absolute())}


def workers(process: int) -> list[int]:
    """Process ids of a service's workers."""
    found = []
    for child in psutil.Process(process).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("_bentoml_impl.worker.service" in part for part in child.cmdline()):
                found.append(child.pid)
    return found
