"""Reading, copying and checking of ONNX files before a runtime loads them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from hwnas.deploy.bundles.checksums import inside
from hwnas.deploy.error_line import first_line
from hwnas.errors import ArtifactError

__all__ = [
    "attributes_of",
    "check_graph",
    "copy_model",
    "external_files",
    "messages",
    "model_bytes",
    "read_model",
    "read_whole_model",
    "store_constants",
]

_ENDLESS = ("Loop", "Scan")
_DEEPEST = 3


def read_model(path: Path) -> Any:
    """Read an ONNX file without the weights that it keeps in other files.

    Raises:
        ArtifactError: The file is missing or not an ONNX file.
    """
    import onnx

    if not path.is_file():
        raise ArtifactError(f"there is no ONNX file {path}; give the path of an existing one")
    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # errors of protobuf share no other base
        raise ArtifactError(f"{path} is not an ONNX file: {first_line(error)}") from error


def read_whole_model(path: Path) -> Any:
    """Read an ONNX file together with the weights that it keeps in other files.

    Raises:
        ArtifactError: The file is missing or not an ONNX file, its weights lie outside its folder,
            are missing or too short, or another file holds a sparse tensor or one of a function.
    """
    import onnx

    model = read_model(path)
    if not external_files(path, model):
        return model
    try:
        model = onnx.load(path)
    except Exception as error:  # errors of onnx share no other base
        raise ArtifactError(f"{path} cannot be read: {first_line(error)}") from error
    if external_files(path, model):  # onnx reads external data of graphs and attributes only
        raise ArtifactError(
            f"{path} keeps a sparse tensor, or a tensor of a function, in another file; save that "
            "tensor in the ONNX file"
        )
    return model


def external_files(path: Path, model: Any = None) -> list[str]:
    """Return the names of the files beside an ONNX file that hold its weights, sorted.

    Every tensor counts, wherever it is: in nested graphs, functions, attributes of nodes and sparse
    tensors. Runtimes differ in which of these they read.

    Args:
        path: ONNX file.
        model: Result of `read_model` for the file; read if None.

    Raises:
        ArtifactError: The file is not an ONNX file, or a tensor does not lie entirely in one file
            in its folder.
    """
    found = set()
    for tensor in messages(read_model(path) if model is None else model, "TensorProto"):
        if tensor.external_data or tensor.data_location == tensor.EXTERNAL:
            found.add(_external_file(path, tensor))
    return sorted(found)


def _external_file(path: Path, tensor: Any) -> str:
    """Return the name of the one file in the folder that holds a tensor."""
    about = f"{path} keeps the tensor {tensor.name!r} in another file"
    keys = [entry.key for entry in tensor.external_data]
    if keys.count("location") != 1 or len(set(keys)) < len(keys):
        raise ArtifactError(f"{about}, but does not name that file; export the model again")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    name = entries["location"]
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or _leads_out(path.parent, name):
        raise ArtifactError(
            f"{about}, {name!r}, which is outside its folder; save the weights beside the ONNX "
            "file, or inside it"
        )
    file = path.parent / name
    if not file.is_file():
        raise ArtifactError(f"{about}, {name!r}, which is missing; put it beside {path.name}")
    try:
        offset, length = (int(entries.get(key) or 0) for key in ("offset", "length"))
    except ValueError as error:
        raise ArtifactError(f"{about}, but its offset or length is damaged: {error}") from error
    if min(offset, length) < 0 or offset + length > file.stat().st_size:
        raise ArtifactError(f"{about}, {name!r}, which is too short; copy or export it again")
    return str(PurePosixPath(name))


def model_bytes(path: Path) -> int:
    """Return the size in bytes of an ONNX file together with the files that hold its weights.

    Raises:
        ArtifactError: The file is not an ONNX file, or its weights lie outside its folder.
    """
    names = [path.name, *external_files(path)]
    return sum((path.parent / name).stat().st_size for name in names)


def _leads_out(folder: Path, name: str) -> bool:
    """Return whether a name leads out of a folder, with symbolic links followed."""
    try:
        inside(folder, name)
    except (ArtifactError, OSError, RuntimeError):  # links may form a cycle
        return True
    return False


def copy_model(source: Path, to: Path) -> None:
    """Copy an ONNX file; external weights go to one file, which is named after the copy.

    Raises:
        ArtifactError: The file is damaged, or its weights lie outside its folder.
        OSError: The copy cannot be written.
    """
    import onnx

    if not external_files(source):
        shutil.copyfile(source, to)
        return
    data = to.with_name(f"{to.name}.data")
    data.unlink(missing_ok=True)  # onnx would append to it
    onnx.save_model(
        read_whole_model(source),
        to,
        save_as_external_data=True,
        location=data.name,
        convert_attribute=True,
    )


def check_graph(path: Path) -> None:
    """Raise an error if a file could keep a runtime busy for ever or have it read files elsewhere.

    Loops may be endless, and nested graphs or functions that call each other can be exponentially
    larger than the file that defines them. All other graphs end. External weights have to lie in
    the folder of the ONNX file, because some runtimes read whatever path it names.

    Raises:
        ArtifactError: The file has such a construct, is missing or is not an ONNX file.
    """
    model = read_model(path)
    external_files(path, model)
    if model.functions:
        raise ArtifactError(
            f"{path} defines {len(model.functions)} functions; inline them with "
            "onnx.inliner.inline_local_functions"
        )
    for node, depth in _nodes(model.graph):
        if node.op_type in _ENDLESS:
            raise ArtifactError(
                f"{path} has the operator {node.op_type!r}, which may never end; "
                "export the network without it"
            )
        if depth > _DEEPEST:
            raise ArtifactError(
                f"{path} nests graphs more than {_DEEPEST} deep; export the network without them"
            )


def attributes_of(node: Any) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    from onnx import helper

    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def store_constants(graph: Any) -> None:
    """Replace nodes that give a constant tensor by stored tensors, which can be changed."""
    for node in list(graph.node):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            stored = graph.initializer.add()
            stored.CopyFrom(node.attribute[0].t)
            stored.name = node.output[0]
            graph.node.remove(node)


def messages(message: Any, kind: str) -> Iterator[Any]:
    """Yield all protobuf messages of a kind, such as ``"TensorProto"``, in a message.

    Messages inside other messages of the kind are included. Values of tensors are never copied.
    """
    stack = [message]
    while stack:
        each = stack.pop()
        if each.DESCRIPTOR.name == kind:
            yield each
        if each.DESCRIPTOR.name == "TensorProto":  # to look at its values would copy them
            continue
        for described, value in each.ListFields():
            if described.message_type is not None:
                stack.extend(value if hasattr(value, "__len__") else [value])


def _nodes(graph: Any) -> Iterator[tuple[Any, int]]:
    """Yield all nodes, including those of nested graphs, each with its nesting depth."""
    graphs = [(graph, 0)]
    while graphs:
        inner, depth = graphs.pop()
        for node in inner.node:
            yield node, depth
            for attribute in node.attribute:
                found = [attribute.g] if attribute.HasField("g") else attribute.graphs
                graphs += [(each, depth + 1) for each in found]
