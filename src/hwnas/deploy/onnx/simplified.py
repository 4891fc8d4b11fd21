"""Simplifications of ONNX graphs: several nodes that compute what one node does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from hwnas.deploy.onnx.module import Node

__all__ = ["transposed_at_once", "with_biases"]

Shape = tuple[int, ...]


def transposed_at_once(
    nodes: Sequence[Node], shapes: Mapping[str, Shape], output: str
) -> list[Node]:
    """Return the nodes with one transposition for each reshape, transposition and reshape.

    PyTorch writes the transposition of keys in attention like this, which fixes the number of
    heads.

    Args:
        nodes: Nodes in the order of execution.
        shapes: Shape of each value, by name.
        output: Name of the output of the graph.
    """
    makers = {name: node for node in nodes for name in node.outputs}
    users = Counter(name for node in nodes for name in node.inputs)
    found: list[Node] = []
    for node in nodes:
        chain = [node]
        while len(chain) < 3 and (maker := makers.get(chain[0].inputs[0])) is not None:
            chain.insert(0, maker)
        inner = [each.outputs[0] for each in chain[:-1]]
        if all(users[name] == 1 and name != output for name in inner) and _swaps(chain, shapes):
            rank = len(shapes[node.outputs[0]])
            order = [*range(rank - 2), rank - 1, rank - 2]
            found = [each for each in found if each not in chain]
            node = Node("Transpose", chain[0].inputs[:1], node.outputs, {"perm": order})
        found.append(node)
    return found


def _swaps(chain: Sequence[Node], shapes: Mapping[str, Shape]) -> bool:
    """Return whether nodes merge the leading dimensions, swap the others, and split them again."""
    if [node.kind for node in chain] != ["Reshape", "Transpose", "Reshape"]:
        return False
    before, merged, _, after = (
        shapes[name] for name in (chain[0].inputs[0], *(node.outputs[0] for node in chain))
    )
    swapped = (*before[:-2], before[-1], before[-2])
    order = tuple(chain[1].attributes.get("perm", ()))
    return order == (0, 2, 1) and merged[1:] == before[-2:] and after == swapped


def with_biases(
    nodes: Sequence[Node], tensors: Mapping[str, Tensor], output: str
) -> tuple[Node, ...]:
    """Return the nodes with each product with a matrix, and the sum with its bias, as one ``Gemm``.

    Args:
        nodes: Nodes in the order of execution.
        tensors: Constants that are tensors, by name.
        output: Name of the output of the graph.

    Returns:
        The nodes. As layers, unlike in ONNX, a ``Gemm`` of these takes any number of dimensions.
    """
    users = Counter(name for node in nodes for name in node.inputs)
    products = {
        node.outputs[0]: node
        for node in nodes
        if node.kind == "MatMul"
        and node.inputs[0] not in tensors
        and node.inputs[1] in tensors
        and tensors[node.inputs[1]].dim() == 2
        and users[node.outputs[0]] == 1
        and node.outputs[0] != output
    }
    found: list[Node] = []
    for node in nodes:
        pairs = [node.inputs, node.inputs[::-1]] if node.kind == "Add" else []
        for name, bias in pairs:
            product = products.get(name)
            if product is not None and bias in tensors:
                width = tensors[product.inputs[1]].shape[1]
                if tensors[bias].numel() == tensors[bias].shape[-1] == width:
                    found.remove(product)
                    node = Node("Gemm", (*product.inputs, bias), node.outputs, {})
                    break
        found.append(node)
    return tuple(found)
