"""Early exits in ONNX files: the rest of a network as a branch that is skipped.

PyTorch exports a network with an early exit as one graph, which computes the whole network and then
chooses each image's outputs. In the files that ship, the part after the exit is the branch of an
``If`` node. A batch of which all images leave skips it; with one image at a time, that is each
image that leaves. Otherwise the branch computes the rest and chooses for each image, so a file is
right at every batch size. For runtimes and formats without such nodes, the branch becomes a part of
the graph again: they give the same outputs, but always compute the whole network.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hwnas.deploy.onnx.graph import read_model, read_whole_model
from hwnas.errors import ArtifactError

__all__ = [
    "EarlyExit",
    "early_exit_of",
    "noted_exit",
    "refuse_early_exit",
    "unconditional",
    "with_branch",
    "without_branch",
    "write_paths",
]

_NOTE = "hwnas.early_exit"
_ALWAYS, _NEVER = -1.0, 2.0
"""Thresholds on a probability that all images reach, and that no image reaches."""


@dataclass(frozen=True)
class EarlyExit:
    """Early exit of an ONNX file.

    Attributes:
        share: Share of images that left where the threshold was fitted, in [0, 1).
        threshold: Name of the initialiser with the threshold.
    """

    share: float
    threshold: str

    def share_of_batches(self, batch: int) -> float:
        """Return the share of batches of independent images that skip the rest of the network."""
        return float(self.share**batch)


def early_exit_of(path: Path) -> EarlyExit | None:
    """Return the early exit of an ONNX file; None if it has none.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    return noted_exit(path, read_model(path))


def noted_exit(path: Path, model: Any) -> EarlyExit | None:
    """Return the early exit of a model that was read from a file; None if it has none.

    Raises:
        ArtifactError: The note on the exit is damaged.
    """
    notes = {note.key: note.value for note in model.metadata_props}
    if _NOTE not in notes:
        return None
    try:
        return EarlyExit(**json.loads(notes[_NOTE]))
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: its note on the early exit is damaged: {error}") from error


def refuse_early_exit(path: Path, use: str, instead: str) -> None:
    """Raise if an ONNX file has an early exit.

    Args:
        path: ONNX file.
        use: What cannot be done with such files, as the start of a sentence.
        instead: What to do instead, as the end of a sentence.

    Raises:
        ArtifactError: The file has an early exit.
    """
    if early_exit_of(path) is not None:
        raise ArtifactError(
            f"{use}, but {path} has an early exit, which skips a part of the network by an If "
            f"node; {instead}"
        )


def with_branch(model: Any, share: float) -> Any:
    """Return an exported model with the part after its exit as a branch that may be skipped.

    Args:
        model: Model whose output is chosen for each image between the exit and the end.
        share: Share of images that left where the threshold was fitted.

    Raises:
        ArtifactError: The graph has another form.
    """
    import onnx

    model = copy.deepcopy(model)
    graph, output = model.graph, model.graph.output[0]
    writers = {name: node for node in graph.node for name in node.output}
    choice = _expected(_writer(writers, output.name), "Where", output.name)
    leaves, early, _ = choice.input
    reached = _expected(_writer(writers, leaves), "GreaterOrEqual", leaves)
    confidence, threshold = reached.input
    first = _needed(writers, [early, confidence, leaves])
    rest = [node for node in graph.node if id(node) not in first]
    least, skipped = f"{confidence}/least", f"{confidence}/all_leave"
    nodes = [
        *(node for node in graph.node if id(node) in first),
        onnx.helper.make_node("ReduceMin", [confidence], [least], f"{least}", keepdims=0),
        onnx.helper.make_node("GreaterOrEqual", [least, threshold], [skipped], skipped),
        onnx.helper.make_node(
            "If",
            [skipped],
            [output.name],
            "early_exit",
            then_branch=_exit_branch(early, output),
            else_branch=_rest_branch(graph, rest, choice, output),
        ),
    ]
    nodes = [copy.deepcopy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    note = EarlyExit(round(share, 6), threshold)
    entry = model.metadata_props.add()
    entry.key, entry.value = _NOTE, json.dumps(asdict(note))
    return model


def _writer(writers: dict[str, Any], name: str) -> Any | None:
    """Return the node that computes a value, behind nodes that only copy it."""
    node = writers.get(name)
    while node is not None and node.op_type == "Identity":
        node = writers.get(node.input[0])
    return node


def _expected(node: Any | None, kind: str, name: str) -> Any:
    if node is None or node.op_type != kind:
        found = "no node" if node is None else node.op_type
        raise ArtifactError(
            f"the exported network with an early exit computes {name!r} by {found} instead of "
            f"{kind}; use the PyTorch version of hwnas's extras, or set space.exit_share without "
            "exits"
        )
    return node


def _needed(writers: dict[str, Any], names: Iterable[str]) -> set[int]:
    """Return the identities of the nodes that some values depend on."""
    found: set[int] = set()
    left = list(names)
    while left:
        node = writers.get(left.pop())
        if node is not None and id(node) not in found:
            found.add(id(node))
            left += node.input
    return found


def _exit_branch(early: str, output: Any) -> Any:
    """Return the branch for images that leave: the outputs of the exit."""
    import onnx

    value = _named(output, f"{output.name}/early")
    node = onnx.helper.make_node("Identity", [early], [value.name], value.name)
    return onnx.helper.make_graph([node], "images_leave", [], [value])


def _rest_branch(graph: Any, rest: list[Any], choice: Any, output: Any) -> Any:
    """Return the branch for other images, with the weights that only it reads."""
    import onnx

    value = _named(output, f"{output.name}/end")
    inside = [copy.deepcopy(node) for node in rest]
    for node in inside:
        if node.output[0] == choice.output[0]:
            node.output[0] = value.name
    inside = [n for n in inside if n.output[0] != output.name]
    read = {name for node in rest for name in node.input}
    outside = {id(node) for node in rest}
    kept = {name for n in graph.node if id(n) not in outside for name in n.input}
    own = [each for each in graph.initializer if each.name in read - kept]
    branch = onnx.helper.make_graph(inside, "images_stay", [], [value], own)
    for each in own:
        graph.initializer.remove(each)
    written = {name for node in inside for name in node.output}
    for about in [each for each in graph.value_info if each.name in written]:
        branch.value_info.append(about)
        graph.value_info.remove(about)
    return branch


def _named(value: Any, name: str) -> Any:
    renamed = copy.deepcopy(value)
    renamed.name = name
    return renamed


def without_branch(model: Any) -> Any:
    """Return a model with an early exit as one graph, which computes the whole network.

    Args:
        model: Result of `with_branch`; other models are returned as they are.
    """
    if all(note.key != _NOTE for note in model.metadata_props):
        return model
    model = copy.deepcopy(model)
    graph, output = model.graph, model.graph.output[0]
    [branching] = [node for node in graph.node if node.op_type == "If"]
    [rest] = [a.g for a in branching.attribute if a.name == "else_branch"]
    inside = [copy.deepcopy(node) for node in rest.node]
    for node in inside:
        names = [output.name if each == rest.output[0].name else each for each in node.output]
        del node.output[:]
        node.output.extend(names)
    skipped = {branching.input[0]}
    least = [n.input[0] for n in graph.node if n.output[0] in skipped]
    before = [
        node
        for node in graph.node
        if node.op_type != "If" and node.output[0] not in skipped.union(least)
    ]
    before = [copy.deepcopy(node) for node in before]
    del graph.node[:]
    graph.node.extend([*before, *inside])
    graph.initializer.extend(rest.initializer)
    graph.value_info.extend(rest.value_info)
    _remove_note(model)
    return model


def _remove_note(model: Any) -> None:
    left = [copy.deepcopy(note) for note in model.metadata_props if note.key != _NOTE]
    del model.metadata_props[:]
    model.metadata_props.extend(left)


def unconditional(path: Path, folder: Path) -> Path:
    """Return a file that computes the whole network for every image.

    Args:
        path: ONNX file, which is returned as it is if it has no early exit.
        folder: Folder for a file made of it, which has the same name.

    Raises:
        ArtifactError: The file is missing or damaged.
    """
    if early_exit_of(path) is None:
        return path
    to = folder / "unconditional" / path.name
    to.parent.mkdir(exist_ok=True)
    to.write_bytes(without_branch(read_whole_model(path)).SerializeToString())
    return to


def write_paths(path: Path, folder: Path) -> tuple[Path, Path]:
    """Write two copies of a file with an early exit: one that all images leave, one that none do.

    The copies have no note on the exit, since each has one path only.

    Args:
        path: ONNX file with an early exit.
        folder: Folder for the copies.

    Returns:
        Paths of both copies.

    Raises:
        ArtifactError: The file has no early exit, or its threshold is missing.
    """
    found = early_exit_of(path)
    if found is None:
        raise ArtifactError(f"{path} has no early exit; measure it as it is")
    written = []
    for name, threshold in (("early", _ALWAYS), ("whole", _NEVER)):
        model = read_whole_model(path)
        _set_threshold(path, model.graph, found.threshold, threshold)
        _remove_note(model)
        written.append(folder / f"{path.stem}-{name}.onnx")
        written[-1].write_bytes(model.SerializeToString())
    early, whole = written
    return early, whole


def _set_threshold(path: Path, graph: Any, name: str, threshold: float) -> None:
    import numpy as np
    from onnx import numpy_helper

    for tensor in graph.initializer:
        if tensor.name == name:
            value = np.full(tuple(tensor.dims), threshold, np.float32)
            tensor.CopyFrom(numpy_helper.from_array(value, name))
            return
    raise ArtifactError(f"{path} lacks {name!r}, the threshold of its early exit; export it again")
