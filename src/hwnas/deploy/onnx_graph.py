"""What is asked of an ONNX file before any runtime gets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hwnas.deploy.first_line import first_line
from hwnas.errors import ArtifactError

__all__ = ["check_graph", "read_model"]

_ENDLESS = ("Loop", "Scan")
_DEEPEST = 3


def read_model(path: Path) -> Any:
    """An ONNX file as it is; weights in other files are not read.

    Raises:
        ArtifactError: The file is missing or no ONNX file.
    """
    import onnx

    if not path.is_file():
        raise ArtifactError(f"there is no ONNX file {path}; give the path of an existing one")
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's errors share no base but this
        raise ArtifactError(f"{path} is not an ONNX file: {first_line(error)}") from error


def check_graph(path: Path) -> None:
    """Refuse what could keep a runtime busy for ever; all other graphs end.

    Loops may be endless, and graphs within graphs or functions that call each other can be
    exponentially larger than the file that says so.

    Raises:
        ArtifactError: The file has such a thing, is missing or is no ONNX file.
    """
    model = read_model(path)
    if model.functions:
        raise ArtifactError(
            f"{path} has {len(model.functions)} functions of its own; put their nodes in their "
            "places with onnx.inliner.inline_local_functions"
        )
    for node, depth in _nodes(model.graph):
        if node.op_type in _ENDLESS:
            raise ArtifactError(
                f"{path} has the operator {node.op_type!r}, which may never end; "
                "export the network without it"
            )
        if depth > _DEEPEST:
            raise ArtifactError(
                f"{path} has graphs within graphs, more than {_DEEPEST} deep; export it without"
            )


def _nodes(graph: Any) -> Iterator[tuple[Any, int]]:
    """All nodes, also those of the branches of others, and how deep they lie."""
    graphs = [(graph, 0)]
    while graphs:
        inner, depth = graphs.pop()
        for node in inner.node:
            yield node, depth
            for attribute in node.attribute:
                found = [attribute.g] if attribute.HasField("g") else attribute.graphs
                graphs += [(each, depth + 1) for each in found]
