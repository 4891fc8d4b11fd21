"""Residual blocks in the graph of an ONNX file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from hwnas.deploy.onnx.module import Node

__all__ = ["ResidualBlock", "with_residual_blocks"]


@dataclass(frozen=True)
class ResidualBlock:
    """Nodes that compute something from one value, and add it to that value.

    Attributes:
        parts: Nodes, and blocks within this one, in the order of execution.
        inputs: Name of the only input.
        outputs: Name of the only output.
    """

    parts: tuple[Node | ResidualBlock, ...]
    inputs: tuple[str]
    outputs: tuple[str, ...]

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes, with those of the blocks within."""
        for part in self.parts:
            yield from part.nodes() if isinstance(part, ResidualBlock) else (part,)


def with_residual_blocks(
    nodes: Sequence[Node], constants: Collection[str], layers: Collection[str], output: str
) -> tuple[Node | ResidualBlock, ...]:
    """Return the parts of a graph, with nodes that form residual blocks put together.

    Args:
        nodes: Nodes in the order of execution.
        constants: Names of values that are no results of nodes.
        layers: Names of the outputs of nodes with weights; a block has at least one.
        output: Name of the output of the graph.
    """
    parts: list[Node | ResidualBlock] = list(nodes)
    place = 0
    while place < len(parts):
        part = parts[place]
        if isinstance(part, Node) and part.kind == "Add":
            for skip, branch in (part.inputs, part.inputs[::-1]):
                inside = _between(parts[:place], skip, branch, constants)
                if inside and _closed(parts, {*inside, place}, part.outputs, output):
                    block = ResidualBlock(
                        (*(parts[i] for i in inside), part), (skip,), part.outputs
                    )
                    if any(name in layers for node in block.nodes() for name in node.outputs):
                        before = [each for i, each in enumerate(parts[:place]) if i not in inside]
                        parts = [*before, block, *parts[place + 1 :]]
                        place = len(before)
                        break
        place += 1
    return tuple(parts)


def _between(
    parts: Sequence[Node | ResidualBlock], start: str, end: str, constants: Collection[str]
) -> list[int]:
    """Return the places of the parts that compute one value from another; empty if they cannot."""
    makers = {name: i for i, part in enumerate(parts) for name in part.outputs}
    found: set[int] = set()
    wanted = [end]
    while wanted:
        name = wanted.pop()
        if name == start or name in constants or makers.get(name) in found:
            continue
        if name not in makers:  # it depends on the input of the graph
            return []
        found.add(makers[name])
        wanted += parts[makers[name]].inputs
    return sorted(found)


def _closed(
    parts: Sequence[Node | ResidualBlock],
    inside: Collection[int],
    results: Sequence[str],
    output: str,
) -> bool:
    """Return whether no other part, nor the graph's output, needs more than results of parts."""
    inner = {name for i in inside for name in parts[i].outputs} - {*results}
    outside = {name for i, part in enumerate(parts) if i not in inside for name in part.inputs}
    return output not in inner and not inner & outside
