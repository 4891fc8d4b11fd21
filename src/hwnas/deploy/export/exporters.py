"""PyTorch's two exporters to ONNX, and the clean-up of their output."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.node_names import name_nodes, rename_nodes
from hwnas.errors import ArtifactError
from hwnas.search_spaces.layers import deformable  # noqa: F401  # it defines the operator

__all__ = ["INPUT", "OPSET", "OUTPUT", "Exporter", "quiet", "to_onnx", "traced_onnx"]

INPUT, OUTPUT = "images", "outputs"
OPSET = 20
Exporter = Literal["dynamo", "torchscript"]
_LOGGERS = (
    "torch.onnx._internal.exporter._registration",  # says "torchvision is not installed" every time
    "torch.fx.experimental.symbolic_shapes",  # logs the errors that it also raises
)


def to_onnx(network: nn.Module, input_shape: tuple[int, int, int]) -> tuple[Any, Exporter, str]:
    """Export with dynamo, which reads the program, or else with TorchScript, which traces one run.

    A trace of one run does not see decisions that depend on values or on the batch, so above all
    the output of TorchScript has to be compared with the module.

    Args:
        network: Network in evaluation mode.
        input_shape: Channels, height and width.

    Returns:
        The ONNX model, the exporter that made it, and the reason why dynamo failed, empty if it did
        not.

    Raises:
        ArtifactError: Neither exporter can export the network.
    """
    batch = torch.zeros(2, *input_shape)
    try:
        return _dynamo(network, batch), "dynamo", ""
    except torch.onnx.OnnxExporterError as error:
        refusal = first_line(error.__cause__ or error)
    try:
        return _torchscript(network, batch), "torchscript", refusal
    except Exception as error:  # tracing runs the user's code, which may raise anything
        raise ArtifactError(
            f"PyTorch cannot export {type(network).__name__}: {refusal}. Its older exporter fails, "
            f"too: {first_line(error)}"
        ) from error


def _dynamo(network: nn.Module, batch: torch.Tensor) -> Any:
    sizes = {0: torch.export.Dim("batch", min=1, max=256)}
    with quiet():
        program = torch.onnx.export(
            network,
            (batch,),
            dynamo=True,
            dynamic_shapes=(sizes,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            opset_version=OPSET,
            external_data=False,
            verbose=False,
            custom_translation_table={torch.ops.hwnas.deform_conv2d.default: _deform_conv},
        )
    assert program is not None
    model = program.model_proto
    name_nodes(model.graph)
    return _without_notes(model)


def traced_onnx(network: nn.Module, input_shape: tuple[int, int, int]) -> Any | None:
    """Export with TorchScript, in a twentieth of the time that dynamo takes.

    Batch normalisations are folded.

    Args:
        network: Network in evaluation mode.
        input_shape: Channels, height and width.

    Returns:
        The ONNX model; None if the network cannot be traced.
    """
    batch = torch.zeros(2, *input_shape)
    try:
        model = _torchscript(network, batch, torch.onnx.TrainingMode.EVAL)
    except Exception:  # tracing runs the user's code, which may raise anything
        return None
    _remove_identities(model.graph)
    _store_constants(model.graph)
    rename_nodes(model.graph)
    return model


def _remove_identities(graph: Any) -> None:
    """Let the users of each copy of a value use the value itself."""
    outputs = {output.name for output in graph.output}
    copies = [n for n in graph.node if n.op_type == "Identity" and n.output[0] not in outputs]
    sources = {node.output[0]: node.input[0] for node in copies}
    for node in copies:
        graph.node.remove(node)
    for node in graph.node:
        for index, name in enumerate(node.input):
            while name in sources:
                name = sources[name]
            node.input[index] = name


def _store_constants(graph: Any) -> None:
    """Make the results of nodes ``Constant`` initialisers, as dynamo does."""
    constants = [node for node in graph.node if node.op_type == "Constant"]
    for node in constants:
        graph.initializer.append(node.attribute[0].t)
        graph.initializer[-1].name = node.output[0]
        graph.node.remove(node)


def _torchscript(
    network: nn.Module,
    batch: torch.Tensor,
    # Evaluation folds normalisations into convolutions, which changes the results' names.
    mode: torch.onnx.TrainingMode = torch.onnx.TrainingMode.PRESERVE,
) -> Any:
    import onnx

    file = io.BytesIO()
    with warnings.catch_warnings(), _no_graph_printed():
        # It warns that it is old and that it does not see decisions, which the comparison detects.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (batch,),
            file,  # type: ignore[arg-type]  # the older exporter accepts open files
            dynamo=False,
            dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
            input_names=[INPUT],
            output_names=[OUTPUT],
            opset_version=OPSET,
            verbose=False,
            training=mode,
        )
    return _without_notes(onnx.load_model_from_string(file.getvalue()))


def _deform_conv(x: Any, offsets: Any, weight: Any, stride: int, groups: int) -> Any:
    """Return the node of a `hwnas.search_spaces.layers.deformable.deformed` convolution."""
    from onnxscript import opset20

    pads = [weight.shape[2] // 2] * 4
    return opset20.DeformConv(x, weight, offsets, group=groups, pads=pads, strides=[stride, stride])


def _without_notes(model: Any) -> Any:
    """Delete the exporter's metadata: stack traces with local paths, half of a small file."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""
    return model


@contextlib.contextmanager
def _no_graph_printed() -> Iterator[None]:
    """Keep the older exporter from printing the whole graph of a network that it cannot export."""
    printed = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = lambda *_: None
    try:
        yield
    finally:
        torch._C._jit_onnx_log = printed


class _Muted:
    """Standard error stream that drops the output of one thread.

    Other threads, such as one that shows progress, still write to the stream.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._thread = stream, threading.get_ident()

    def write(self, text: str) -> int:
        """Write the text unless the muted thread calls this."""
        muted = threading.get_ident() == self._thread
        return len(text) if muted else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress messages of the exporter that do not concern the user."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(_Muted(sys.stderr)):
            # raised when torch.export deep-copies PyTorch's own tree specifications
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
