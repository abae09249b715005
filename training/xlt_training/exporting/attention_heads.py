"""Attention in the form that onnxruntime runs fastest: heads unsplit, no query that nobody reads.

The exporter reshapes and transposes queries, keys, values and the result around every Attention.
The operator takes them unsplit as well, given the number of heads: nothing is copied in between.
Where only the first position of the result is read, as in the last layer of a classifier, only that
query is computed.

Not done, because slower here (XLM-R-base, 8 × 128, onnxruntime 1.31): its SkipLayerNormalization and
BiasGelu take twice and half as long again as the additions, norms and Gelus that they replace.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

_HEADS_FIRST = [0, 2, 1, 3]


def merge(graph: onnx.ModelProto) -> int:
    """Rewrite, in place, each Attention that stands between such reshapes; how many there were."""
    maker, users = _links(graph)
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    merged = 0
    for node in graph.graph.node:
        if node.op_type != "Attention" or len(node.output) != 1:
            continue
        split = [_split(name, maker, weights) for name in node.input[:3]]
        joined = _joined(node.output[0], users)
        if joined is None or any(part is None for part in split):
            continue
        unsplit, sizes = zip(*(part for part in split if part is not None), strict=True)
        width = _width(unsplit[0], maker, weights)
        if width is None or len(set(sizes)) != 1 or width % sizes[0]:
            continue
        node.input[0], node.input[1], node.input[2] = unsplit
        heads = width // sizes[0]
        for key in ("q_num_heads", "kv_num_heads"):
            node.attribute.append(helper.make_attribute(key, heads))
        node.output[0] = joined.output[0]
        joined.output[0] = f"{joined.output[0]}/unused"
        merged += 1
    if merged:
        _drop_unused(graph)
    return merged


def first_query(graph: onnx.ModelProto) -> int:
    """Cut the queries, in place, where Attention's result is cut to its first position; how often."""
    maker, users = _links(graph)
    weights = {t.name: numpy_helper.to_array(t) for t in graph.graph.initializer if t.dims == [1]}
    done = 0
    for node in list(graph.graph.node):
        if node.op_type != "Attention" or len(node.input) < 4:
            continue
        readers = users.get(node.output[0], [])
        bias = maker.get(node.input[0])
        product = maker.get(bias.input[0]) if bias is not None else None
        if (
            len(readers) != 1
            or not _takes_first(readers[0], weights)
            or bias is None
            or product is None
            or (bias.op_type, product.op_type) != ("Add", "MatMul")
            or len(users[product.output[0]]) != 1
            or len(users[bias.output[0]]) != 1
        ):
            continue
        cut = readers[0]
        rows, mask = f"{product.input[0]}/first{done}", f"{node.input[3]}/first{done}"
        _insert(
            graph, product, helper.make_node("Slice", [product.input[0], *cut.input[1:4]], [rows])
        )
        axis = numpy_helper.from_array(np.array([2], dtype=np.int64), "xlt/queries")
        if not done:
            graph.graph.initializer.append(axis)
        cut_mask = helper.make_node("Slice", [node.input[3], *cut.input[1:3], axis.name], [mask])
        _insert(graph, node, cut_mask)
        product.input[0], node.input[3] = rows, mask
        node.output[0], cut.output[0] = cut.output[0], f"{cut.output[0]}/unused"
        done += 1
    if done:
        _drop_unused(graph)
    return done


def _links(
    graph: onnx.ModelProto,
) -> tuple[dict[str, onnx.NodeProto], dict[str, list[onnx.NodeProto]]]:
    """For each value the node that makes it, and those that read it."""
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    return {name: node for node in graph.graph.node for name in node.output}, users


def _takes_first(node: onnx.NodeProto, weights: dict[str, np.ndarray]) -> bool:
    """Slice [0, 1) along axis 1."""
    if node.op_type != "Slice" or len(node.input) < 4:
        return False
    values = [weights.get(name) for name in node.input[1:]]
    expected = [0, 1, 1, 1][: len(values)]
    return all(v is not None and v.tolist() == [e] for v, e in zip(values, expected, strict=True))


def _insert(graph: onnx.ModelProto, before: onnx.NodeProto, new: onnx.NodeProto) -> None:
    graph.graph.node.insert(list(graph.graph.node).index(before), new)


def _split(
    name: str, maker: dict[str, onnx.NodeProto], weights: dict[str, onnx.TensorProto]
) -> tuple[str, int] | None:
    """(what was split into heads, the size of one) behind an input of Attention."""
    transpose = maker.get(name)
    if transpose is None or not _is_swap(transpose):
        return None
    reshape = maker.get(transpose.input[0])
    if reshape is None or reshape.op_type != "Reshape":
        return None
    shape = maker.get(reshape.input[1])
    if shape is None or shape.op_type != "Concat" or len(shape.input) != 4:
        return None
    size = weights.get(shape.input[3])
    return None if size is None else (reshape.input[0], int(numpy_helper.to_array(size)[0]))


def _joined(name: str, users: dict[str, list[onnx.NodeProto]]) -> onnx.NodeProto | None:
    """The Reshape that joins the heads again, if nobody else reads them apart."""
    for kind in ("Transpose", "Reshape"):
        if len(users.get(name, [])) != 1 or users[name][0].op_type != kind:
            return None
        node = users[name][0]
        if kind == "Transpose" and not _is_swap(node):
            return None
        name = node.output[0]
    return node


def _is_swap(node: onnx.NodeProto) -> bool:
    return node.op_type == "Transpose" and any(
        a.name == "perm" and list(a.ints) == _HEADS_FIRST for a in node.attribute
    )


def _width(
    name: str, maker: dict[str, onnx.NodeProto], weights: dict[str, onnx.TensorProto]
) -> int | None:
    """The last dimension of a linear layer's output: that of its bias or weight."""
    node = maker.get(name)
    if node is None or node.op_type not in ("Add", "MatMul"):
        return None
    found = [weights[given] for given in node.input if given in weights]
    return int(found[0].dims[-1]) if found else None


def _drop_unused(graph: onnx.ModelProto) -> None:
    """Take out the nodes whose outputs nobody reads any more."""
    wanted = {value.name for value in graph.graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.graph.node):
        if any(name in wanted for name in node.output):
            wanted.update(node.input)
            kept.append(node)
    del graph.graph.node[:], graph.graph.value_info[:]
    graph.graph.node.extend(reversed(kept))
