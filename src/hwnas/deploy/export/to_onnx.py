"""Export of a PyTorch module to ONNX, with a check that the file computes the same outputs."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hwnas.atomic import replacing
from hwnas.deploy.error_line import first_line
from hwnas.deploy.export.comparison import (
    TOLERANCE,
    Agreement,
    agreement,
    check_batches,
    outputs_of,
    relative_error,
)
from hwnas.deploy.export.conv_norm import fold_norms
from hwnas.deploy.export.divergence import Divergence, first_divergence
from hwnas.deploy.export.exporters import INPUT, OPSET, OUTPUT, Exporter, to_onnx, traced_onnx
from hwnas.deploy.export.quantisers import without_quantisers
from hwnas.deploy.io import Preprocessing
from hwnas.deploy.onnx.early_exit import with_branch
from hwnas.deploy.quantization.grids import LayerGrid, note_grids
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.machine import versions
from hwnas.deploy.targets.target import Device, Target
from hwnas.errors import ArtifactError
from hwnas.search_spaces.early_exit import EarlyExitNetwork
from hwnas.search_spaces.layers.branches import merged_branches

__all__ = [
    "INPUT",
    "OPSET",
    "OUTPUT",
    "TOLERANCE",
    "Export",
    "export_onnx",
    "export_traced",
    "relative_error",
    "traces_alike",
]


@dataclass(frozen=True)
class Export:
    """Exported ONNX file, and its difference from the module that it was exported from.

    Attributes:
        path: ONNX file, with its weights inside.
        opset: Version of ONNX's operators.
        exporter: PyTorch exporter that wrote the file.
        max_relative_error: Largest difference from PyTorch over all checked batches, each as a
            share of the largest output of its batch.
        max_absolute_error: Largest absolute difference from PyTorch over the same batches.
        batches: Number of batches checked.
        inconclusive: Extreme batches that are not counted, since PyTorch itself is not exact on
            them; see `Agreement`.
        seconds: Wall time of the export and the check.
        versions: Versions of the libraries involved, by name.
    """

    path: Path
    opset: int
    exporter: Exporter
    max_relative_error: float
    max_absolute_error: float
    batches: int
    inconclusive: tuple[str, ...]
    seconds: float
    versions: Mapping[str, str] = field(hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without the path."""
        return {key: value for key, value in asdict(self).items() if key != "path"}


def export_onnx(
    network: nn.Module,
    input_shape: tuple[int, int, int],
    path: Path,
    examples: Tensor | None = None,
    preprocessing: Preprocessing | None = None,
    traceable: bool = False,
) -> Export:
    """Export a module to ONNX in evaluation mode, and compare the file with the module.

    Both are compared on random and real inputs in batches of 1, 3 and 8, and on extreme inputs. The
    batch size is dynamic, the input is named ``images`` and the output ``outputs``. Nodes are named
    after the modules that they come from. The file appears only if it passes the comparison. The
    module itself is not changed.

    Args:
        network: Module that takes (N, *input_shape) and returns one tensor with N rows.
        input_shape: Channels, height and width.
        path: ONNX file to write.
        examples: Real inputs, float32 (N, *input_shape), to compare on in addition to random
            inputs.
        preprocessing: Preprocessing of images; if given, the comparison includes the brightest and
            the darkest image.
        traceable: Whether a trace of one run has the operators of the module's program
            (`traces_alike`). The module is then traced, which takes a fraction of the time, unless
            that fails or its outputs differ.

    Raises:
        ArtifactError: PyTorch cannot export the module, or the outputs of the file differ; then the
            message names the first module that differs.
        ConfigError: The module does not accept these inputs, or does not return one tensor.
        StorageError: The file cannot be written.
    """
    start = time.perf_counter()
    plain, grids = _plain(network)
    batches = check_batches(input_shape, examples, preprocessing)
    expected = [outputs_of(plain, batch.images) for batch in batches]
    simplified = _simplified(copy.deepcopy(plain))
    name = type(network).__name__
    with replacing(path) as temporary:

        def compare(model: Any) -> Agreement:
            note_grids(model, grids)
            _save(_branched(model, plain), temporary, name)
            session = RUNTIMES["onnxruntime"].load(temporary, Target(Device("cpu", "onnxruntime")))
            return agreement(session.run, plain, batches, expected)

        exporter: Exporter = "torchscript"
        found = _traced(simplified, input_shape, compare) if traceable else None
        if found is None:
            model, exporter, refusal = to_onnx(simplified, input_shape)
            found = compare(model)
            if found.worst is not None:
                where = first_divergence(simplified, model, found.worst.images, found.relative)
                raise _mismatch(name, found, where, refusal)
    made_by = versions(("torch", "onnx", "onnxscript", "onnxruntime"))
    return Export(
        path,
        OPSET,
        exporter,
        found.relative,
        found.absolute,
        found.batches,
        found.inconclusive,
        time.perf_counter() - start,
        made_by,
    )


def _traced(
    network: nn.Module, input_shape: tuple[int, int, int], compare: Callable[[Any], Agreement]
) -> Agreement | None:
    """Trace a network and compare the result; return None if that fails or the outputs differ."""
    model = traced_onnx(network, input_shape)
    if model is None:
        return None
    try:
        found = compare(model)
    except Exception:  # a wrong trace may fail in the runtime in any way
        return None
    return found if found.worst is None else None


def traces_alike(network: nn.Module, input_shape: tuple[int, int, int]) -> bool:
    """Return whether `export_traced` gives the same operators as `export_onnx`.

    Args:
        network: Module, as for `export_onnx`.
        input_shape: Channels, height and width.
    """
    plain = _simplified(_plain(network)[0])
    traced = traced_onnx(plain, input_shape)
    if traced is None:
        return False
    return _operators(traced) == _operators(to_onnx(plain, input_shape)[0])


def export_traced(network: nn.Module, input_shape: tuple[int, int, int], path: Path) -> None:
    """Export a module to ONNX in little time, for measurements only.

    The file is not compared with the module. It has the same operators as a shipped file, and so
    the same costs, only if `traces_alike` says so. A module that cannot be traced is exported from
    its program.

    Args:
        network: Module, as for `export_onnx`.
        input_shape: Channels, height and width.
        path: ONNX file to write.

    Raises:
        ArtifactError: PyTorch cannot export the module.
        StorageError: The file cannot be written.
    """
    plain, grids = _plain(network)
    _simplified(plain)
    model = traced_onnx(plain, input_shape)
    if model is None:
        model, _, _ = to_onnx(plain, input_shape)
    note_grids(model, grids)
    with replacing(path) as temporary:
        temporary.write_bytes(_branched(model, network).SerializeToString())


def _branched(model: Any, network: nn.Module) -> Any:
    """Return the model of a network, with the part after an early exit as a branch."""
    if not isinstance(network, EarlyExitNetwork) or network.head is None:
        return model
    return with_branch(model, float(network.head.fitted_share))


def _operators(model: Any) -> Counter[str]:
    """Return the number of nodes of each operator, without constants."""
    return Counter(node.op_type for node in model.graph.node if node.op_type != "Constant")


def _save(model: Any, path: Path, name: str) -> None:
    import onnx

    path.write_bytes(model.SerializeToString())
    try:
        onnx.checker.check_model(path, full_check=True)
    except onnx.checker.ValidationError as error:
        reason = first_line(error)
        raise ArtifactError(f"the exported {name} is not valid: {reason}") from error


def _mismatch(name: str, found: Agreement, where: Divergence, refusal: str) -> ArtifactError:
    """Return the error for a file that differs, with the module in which the difference begins."""
    assert found.worst is not None
    older = ""
    if refusal:
        older = (
            f"PyTorch's dynamo exporter cannot export {name} ({refusal}). With the older exporter, "
        )
    return ArtifactError(
        f"{older}the ONNX file of {name} differs from PyTorch by {found.relative:.2g} of the "
        f"largest output ({found.worst}); at most {found.worst.tolerance:g} is allowed. It first "
        f"differs in {where}; check there for operations that depend on the batch size, on values "
        "of tensors or on whether the network is being exported"
    )


def _plain(network: nn.Module) -> tuple[nn.Module, dict[str, LayerGrid]]:
    """Return a copy in evaluation mode without quantisers, and the grids of its layers."""
    plain = merged_branches(copy.deepcopy(network).cpu().eval())
    grids = without_quantisers(plain)
    return plain, grids


class _SpatialMean(nn.Module):
    """Mean over height and width: (N, C, H, W) -> (N, C, 1, 1)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


def _simplified(network: nn.Module) -> nn.Module:
    """Replace modules of a network by equivalent ones that export to fewer and simpler nodes.

    Batch normalisations are folded into the convolutions before them, and in-place flags are
    cleared. The exporter would do both by itself, in twice the time, since it traces every operator
    three times and each in-place operator with a copy. Average pooling to one pixel becomes a mean:
    for a channels-last tensor, PyTorch's pooling returns other strides, which the exporter turns
    into a gather.
    """
    fold_norms(network)
    for module in list(network.modules()):
        if isinstance(getattr(module, "inplace", None), bool):
            module.inplace = False  # type: ignore[assignment]
        for name, child in module.named_children():
            if type(child) is nn.AdaptiveAvgPool2d and child.output_size in (1, (1, 1)):
                setattr(module, name, _SpatialMean())
    return network
