"""From a PyTorch module to an ONNX file that provably computes the same."""

from __future__ import annotations

import contextlib
import copy
import itertools
import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hwnas.atomic import replacing
from hwnas.deploy.catalogue import versions
from hwnas.deploy.device import Device, Target
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.errors import ArtifactError, ConfigError

__all__ = ["INPUT", "OPSET", "OUTPUT", "TOLERANCE", "Export", "export_onnx", "relative_error"]

INPUT, OUTPUT = "images", "outputs"
OPSET = 20
TOLERANCE = 1e-4
"""Largest difference that is allowed, as a share of the largest output."""


@dataclass(frozen=True)
class Export:
    """An ONNX file and how far it is from the module it was made of.

    Attributes:
        path: The file; its weights are inside.
        opset: Version of ONNX's operators.
        max_relative_error: Largest difference to PyTorch over all checked batches, each as a share
            of its largest output.
        max_absolute_error: The same, not divided.
        seconds: Wall time of exporting and checking.
        versions: Of the libraries that made it.
    """

    path: Path
    opset: int
    max_relative_error: float
    max_absolute_error: float
    seconds: float
    versions: Mapping[str, str] = field(hash=False)

    def to_json(self) -> dict[str, Any]:
        """A JSON object, without the path."""
        return {key: value for key, value in asdict(self).items() if key != "path"}


def relative_error(outputs: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest difference as a share of the largest expected value; infinite if shapes differ."""
    if outputs.shape != expected.shape:
        return float("inf")
    difference = np.abs(outputs.astype(np.float64) - expected).max()
    return float(difference / max(np.abs(expected).max(), 1e-12))


def export_onnx(
    network: nn.Module,
    input_shape: tuple[int, int, int],
    path: Path,
    examples: Tensor | None = None,
) -> Export:
    """Write a module as ONNX, in evaluation mode, and compare the two.

    The batch is dynamic, the input is called ``images`` and the output ``outputs``. The file
    appears only when it has passed. The module itself is left as it is.

    Args:
        network: Takes (N, *input_shape) and returns one tensor with N rows.
        input_shape: Channels, height and width.
        path: The file to write.
        examples: Real inputs, float32 (N, *input_shape), to compare on beside random ones.

    Raises:
        ArtifactError: PyTorch cannot export the module, or the file computes something else.
        ConfigError: The module does not take such inputs or returns something else than a tensor.
        StorageError: The file cannot be written.
    """
    start = time.perf_counter()
    plain = copy.deepcopy(network).cpu().eval()
    batches = _check_batches(input_shape, examples)
    expected = [_run(plain, batch) for batch in batches]
    with replacing(path) as temporary:
        _write(_fold_batch_norms(plain), input_shape, temporary)
        session = RUNTIMES["onnxruntime"].load(temporary, Target(Device("cpu", "onnxruntime")))
        pairs = [
            (session.run(batch.numpy()), outputs)
            for batch, outputs in zip(batches, expected, strict=True)
        ]
        relative = max(relative_error(*pair) for pair in pairs)
        if not relative <= TOLERANCE:  # also where it is not a number
            raise ArtifactError(
                f"the ONNX file of {type(network).__name__} differs from PyTorch by {relative:.2g} "
                f"of the largest output; at most {TOLERANCE:g} is allowed. Look for operations "
                "that depend on the batch or on values of tensors"
            )
    absolute = max(float(np.abs(outputs - known).max()) for outputs, known in pairs)
    made_by = versions(("torch", "onnx", "onnxscript", "onnxruntime"))
    return Export(path, OPSET, relative, absolute, time.perf_counter() - start, made_by)


def _check_batches(input_shape: tuple[int, int, int], examples: Tensor | None) -> list[Tensor]:
    random = torch.randn(3, *input_shape, generator=torch.Generator().manual_seed(0))
    batches = [random[:1], random]
    if examples is not None:
        if tuple(examples.shape[1:]) != tuple(input_shape) or not len(examples):
            raise ConfigError(
                f"examples have shape {tuple(examples.shape)}; expected (N, *{input_shape})"
            )
        real = examples[:16].detach().float().cpu().contiguous()
        batches += [real[:1], real]
    return batches


@torch.no_grad()
def _run(network: nn.Module, batch: Tensor) -> NDArray[Any]:
    name = type(network).__name__
    try:
        outputs = network(batch)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{name} does not take inputs of shape {tuple(batch.shape)}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"{name} returns {type(outputs).__name__}; expected one tensor")
    if outputs.shape[:1] != batch.shape[:1]:
        raise ConfigError(
            f"{name} returns {tuple(outputs.shape)} for {len(batch)} images; expected one row each"
        )
    array: NDArray[Any] = outputs.numpy()
    return array


def _fold_batch_norms(network: nn.Module) -> nn.Module:
    """Merge normalisations into the convolutions before them and drop in-place flags.

    The exporter would do so by itself, at twice the time: it traces every operator three times and
    each in-place one with a copy.
    """
    for module in network.modules():
        if isinstance(getattr(module, "inplace", None), bool):
            module.inplace = False  # type: ignore[assignment]
        if (
            not isinstance(module, nn.Sequential)
            or type(module).forward is not nn.Sequential.forward
        ):
            continue  # only there it is certain that the children run one after the other
        children = list(module.named_children())
        for (name, first), (norm_name, norm) in itertools.pairwise(children):
            if (
                type(first) is nn.Conv2d
                and type(norm) is nn.BatchNorm2d
                and norm.track_running_stats
            ):
                setattr(module, name, fuse_conv_bn_eval(first, norm))
                setattr(module, norm_name, nn.Identity())
    return network


def _write(network: nn.Module, input_shape: tuple[int, int, int], path: Path) -> None:
    import onnx

    batch = {0: torch.export.Dim("batch", min=1, max=256)}
    try:
        with _quiet():
            program = torch.onnx.export(
                network,
                (torch.zeros(2, *input_shape),),
                dynamo=True,
                dynamic_shapes=(batch,),
                input_names=[INPUT],
                output_names=[OUTPUT],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        raise ArtifactError(f"PyTorch cannot export {type(network).__name__}: {reason}") from error
    assert program is not None
    model = _without_traces(program.model_proto)
    path.write_bytes(model.SerializeToString())
    try:
        onnx.checker.check_model(path, full_check=True)
    except onnx.checker.ValidationError as error:
        reason = str(error).splitlines()[0]
        raise ArtifactError(
            f"the exported {type(network).__name__} is not valid: {reason}"
        ) from error


def _without_traces(model: Any) -> Any:
    """Drop the exporter's notes: stack traces with paths of this machine, half of a small file."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info):
        del part.metadata_props[:]
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the exporter says about things that are not the user's."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)  # "torchvision is not installed", on every export
    try:
        with warnings.catch_warnings():
            # copy.deepcopy of PyTorch's own tree specifications inside torch.export
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        registration.setLevel(level)
