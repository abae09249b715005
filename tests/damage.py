"""Bundles whose weights are damaged, under a manifest that vouches for them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from xlt_serve import bundle as bundles
from xlt_serve.bundle import Bundle, Graph
from xlt_serve.text.tokens import Encoder, Tokens

WORD = "zebra"
"""The word that damaged embeddings have a hole for; texts without it are answered as ever."""


def without_word(of: Bundle, folder: Path, value: float) -> Bundle:
    """A copy in which the embedding of ``WORD`` is ``value``."""
    return damaged(of, folder, "word_embeddings.weight/scale", value, first_token(of))


def first_token(of: Bundle, word: str = WORD) -> int:
    manifest = of.manifest
    [tokens] = Encoder(of.file(manifest.tokenizer), manifest.max_length).encode([word])
    assert isinstance(tokens, Tokens)
    return tokens.pieces[0].ids[1]


def damaged(of: Bundle, folder: Path, weight: str, value: float, row: int | None = None) -> Bundle:
    """A copy in which the weight whose name ends so, or one row of it, is ``value`` everywhere."""
    shutil.copytree(of.path, folder)
    for graph in of.manifest.graphs.values():
        found = placed(folder / graph.file, weight)
        shape = tuple(found["dims"])
        array = np.memmap(
            folder / found["location"], np.float32, "r+", int(found.get("offset", 0)), shape
        )
        array[slice(None) if row is None else row] = value
        array.flush()
    return bundles.save(folder, of.manifest)


def placed(file: Path, name: str) -> dict[str, Any]:
    """The file, offset and shape of a weight."""
    graph = onnx.load(str(file), load_external_data=False).graph
    [found] = [one for one in graph.initializer if one.name.endswith(name) and one.external_data]
    return {entry.key: entry.value for entry in found.external_data} | {"dims": found.dims}


def judge(folder: Path, hole: float, kind: type[np.floating[Any]] = np.float32) -> Bundle:
    """A graph that judges pairs, for zero-shot: the mean of the rows of a table, random but for that
    of ``WORD``, as logits and as a vector."""
    shipped = bundles.load("topics")
    table = np.random.default_rng(0).normal(size=(54_500, 2)).astype(kind)
    table[first_token(shipped)] = hole
    folder.mkdir()
    shutil.copy(shipped.file(shipped.manifest.tokenizer), folder / "tokenizer.json")
    (folder / "plain.onnx").write_bytes(mean_of(table).SerializeToString())
    manifest = replace(
        shipped.manifest,
        name="judge",
        pair=True,
        labels=("entailment", "contradiction"),
        graphs={
            "plain": Graph(
                "plain.onnx", ("input_ids", "attention_mask"), ("logits", "vector"), "fp32"
            )
        },
        tokenizer="tokenizer.json",
        noise={},
        calibration={},
        checks={},
    )
    return bundles.save(folder, manifest)


def mean_of(table: npt.NDArray[Any]) -> onnx.ModelProto:
    number = helper.np_dtype_to_tensor_dtype(table.dtype)
    mask = helper.make_node("Cast", ["attention_mask"], ["mask"], to=number)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], axis=0),
        mask,
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
        helper.make_node("Mul", ["rows", "wide"], ["real"]),
        helper.make_node("ReduceMean", ["real", "second"], ["logits"], keepdims=0),
        helper.make_node("Identity", ["logits"], ["vector"]),
    ]
    shape = ["batch", "length"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [
        helper.make_tensor_value_info(name, number, ["batch", table.shape[1]])
        for name in ("logits", "vector")
    ]
    constants = [
        numpy_helper.from_array(table, "table"),
        numpy_helper.from_array(np.array([-1]), "last"),
        numpy_helper.from_array(np.array([1]), "second"),
    ]
    graph = helper.make_graph(nodes, "judge", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
