"""Operators of an ONNX file, and the block of the network that each comes from.

Files that hwnas exports name their nodes after that block: ``stages.0.1.expand.conv/Conv``. The
messages of runtimes, profilers and viewers name nodes, and so they name the block, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hwnas.errors import ArtifactError, UnsupportedOperator

__all__ = ["block_of", "foreign", "in_words", "name_nodes", "refused", "rename_nodes"]

_SCOPES = "pkg.torch.onnx.name_scopes"
"""Key of the exporter's metadata that lists the modules of a node: the text of a list of names."""
_UNKNOWN = (
    "not a registered|No Op registered|not find an implementation|No conversion rule|Op Not Support"
)
"""Pattern in the messages by which runtimes report an unknown operator."""


def name_nodes(graph: Any) -> None:
    """Name each node after the block that it comes from, according to the exporter's metadata."""
    blocks = []
    for node in graph.node:
        notes = {note.key: note.value for note in node.metadata_props}
        scopes = re.findall(r"'([^']*)'", notes.get(_SCOPES, ""))
        blocks.append(scopes[-2] if len(scopes) > 1 else "")  # the last is the operator itself
    _set_names(graph, blocks)


def rename_nodes(graph: Any) -> None:
    """Name each node as `name_nodes` does, from its name by PyTorch's older exporter."""
    _set_names(graph, [block_of(node.name) for node in graph.node])


def _set_names(graph: Any, blocks: Iterable[str]) -> None:
    seen: dict[str, int] = {}
    for node, block in zip(graph.node, blocks, strict=True):
        name = f"{block}/{node.op_type}"
        seen[name] = seen.get(name, 0) + 1
        node.name = name if seen[name] == 1 else f"{name}_{seen[name]}"


def block_of(name: str) -> str:
    """Return the block in a node's name, e.g. ``"stages.0.1.expand.conv"``; empty if there is none.

    Names by PyTorch's older exporter are read, too: ``"/layer1/layer1.0/conv1/Conv"``.
    """
    block = last = ""
    for part in filter(None, name.split("/")[:-1]):
        if not block or part.startswith(f"{block}."):
            block = part
        elif part.startswith(f"{last}."):  # repeats the name of the row that it is in
            block = block.removesuffix(last) + part
        else:
            block = f"{block}.{part}"
        last = part
    return block


def foreign(graph: Any, known: Iterable[str]) -> list[tuple[str, str]]:
    """Return the operators of a graph that are not among the known ones, each with its block."""
    names = set(known)
    odd = ((node.op_type, block_of(node.name)) for node in graph.node if node.op_type not in names)
    return list(dict.fromkeys(odd))


def in_words(operators: Iterable[tuple[str, str]]) -> str:
    """Return operators as text for a message, e.g. ``"Sinh (stages.0.1.act)"``."""
    return ", ".join(f"{name} ({block})" if block else name for name, block in operators)


def refused(path: Path, runtime: str, reason: str) -> ArtifactError:
    """Return the error for a file that a runtime cannot load, with any unsupported operators.

    Args:
        path: ONNX file.
        runtime: Name of the runtime for the message.
        reason: Message of the runtime, one line.
    """
    operators = _named_in(path, reason) if re.search(_UNKNOWN, reason) else []
    if operators:
        return UnsupportedOperator(
            f"{path}: {runtime} cannot run {in_words(operators)}; build that block from other "
            f"operators or choose another runtime ({reason})",
            operators,
        )
    return ArtifactError(f"{path} is not an ONNX file that {runtime} can load: {reason}")


def _named_in(path: Path, reason: str) -> list[tuple[str, str]]:
    """Return the operators of a file that a runtime's message names."""
    import onnx

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # errors of protobuf share no other base; the reason says what is wrong
        return []
    words = set(re.findall(r"\w+", reason.replace(str(path), " ")))
    return foreign(graph, {node.op_type for node in graph.node} - words)
