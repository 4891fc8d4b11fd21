"""Quantisation of ONNX files to eight-bit integers, in whole or in part."""

from __future__ import annotations

import contextlib
import copy
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import replacing
from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.graph import check_graph, copy_model, external_files, read_whole_model
from hwnas.deploy.quantization.grids import noted_grids
from hwnas.deploy.quantization.layer_inputs import round_only_for_layers
from hwnas.deploy.quantization.ranges import RANGES, Range, activations
from hwnas.deploy.quantization.reused_weights import has_large_biases, reuse_weights
from hwnas.deploy.quantization.saturation import LARGEST_REDUCED
from hwnas.deploy.targets.processor import sums_saturate
from hwnas.errors import ArtifactError, HwnasError

__all__ = [
    "Int8Quantizer",
    "Unit",
    "prepare",
    "quantisation_errors",
    "quantize_int8",
    "random_batches",
]

_WARNINGS, _ERRORS = 2, 3  # severities of ONNX Runtime's log; the first is its default
_LARGEST = 127
_BIAS = 2  # its place among the inputs of a layer
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Unit:
    """Nodes that are quantised together or not at all.

    Attributes:
        name: Name of the layer, or the type of the operator if it has no weights.
        nodes: Names of the nodes in the graph.
    """

    name: str
    nodes: tuple[str, ...]


class Int8Quantizer:
    """Quantiser of one network, in whole or in part, which computes the ranges once.

    Quantisation is static, in QDQ format, with unsigned activations and signed weights per channel.
    x86 multiplies U8S8 fastest; S8S8 and dynamic quantisation are several times slower on
    convolutions there. If the processor would saturate sums of such products, weights have seven
    bits. The quantiser is a context manager, because it keeps temporary files.

    Attributes:
        prepared: File in single precision that is quantised: the network as `prepare` writes it.
        ranges: Method by which the ranges were chosen.

    Args:
        source: ONNX file with one float32 input.
        batches: Inputs (N, ...) from which the ranges of activations are computed.
        ranges: Methods to choose ranges, one or more of `hwnas.deploy.quantization.ranges.RANGES`.
            Of several, the method is used with which the outputs of the fully quantised network are
            closest to those of the network in fp32 on ``batches``.
        reduce_range: True if weights are from -64 to 64, so that no sum of two products can
            overflow 16 bits; if None, true if this machine's processor needs that. If False,
            methods for ranges are compared without such overflow.

    Raises:
        ArtifactError: The file is damaged.
    """

    def __init__(
        self,
        source: Path,
        batches: Sequence[NDArray[np.float32]],
        ranges: Sequence[str] = tuple(RANGES),
        reduce_range: bool | None = None,
    ) -> None:
        self._source = source
        self._reduce_range = sums_saturate() if reduce_range is None else reduce_range
        self._folder = tempfile.TemporaryDirectory()
        self.prepared = Path(self._folder.name, "prepared.onnx")
        try:
            prepare(source, self.prepared)
            with self._refused(), _quiet():
                expected = self._save_ranges(batches, ranges)
            self.ranges = ranges[0]
            if len(ranges) > 1:
                self.ranges = self._closest(ranges, batches, expected)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    @cached_property
    def _grids(self) -> dict[str, Any]:
        """Options of ONNX Runtime's quantiser for weights that were trained with few bits."""
        import onnx

        return noted_grids(onnx.load(self.prepared), self.largest)

    @property
    def largest(self) -> int:
        """Largest step of a weight: 127, or 64 in reduced range."""
        return LARGEST_REDUCED if self._reduce_range else _LARGEST

    @property
    def units(self) -> list[Unit]:
        """Units that can be left out: each layer with weights, other operators grouped by type."""
        import onnx
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        graph = onnx.load(self.prepared).graph
        weights = {tensor.name for tensor in graph.initializer}
        layers, others = [], dict[str, list[str]]()
        for node in graph.node:
            if node.op_type in _WITH_WEIGHTS and weights & set(node.input):
                layers.append(Unit(node.name, (node.name,)))
            elif node.op_type in QDQRegistry or node.op_type in QLinearOpsRegistry:
                others.setdefault(node.op_type, []).append(node.name)
        return [*layers, *(Unit(kind, tuple(nodes)) for kind, nodes in others.items())]

    def write(
        self, to: Path, only: Sequence[Unit] | None = None, without: Sequence[Unit] = ()
    ) -> Path:
        """Write the quantised network.

        Args:
            to: File to write.
            only: Units to quantise; all if None.
            without: Units that stay in floating point.

        Returns:
            ``to``.

        Raises:
            ArtifactError: The file cannot be quantised.
            StorageError: ``to`` cannot be written.
        """
        whole = self._file(self.ranges, "onnx")
        if only is None and not without and whole.exists():  # written to choose the ranges
            copy_model(whole, to)
            return to
        return self._write(self.prepared, to, only, without)

    def _write(
        self,
        source: Path,
        to: Path,
        only: Sequence[Unit] | None = None,
        without: Sequence[Unit] = (),
    ) -> Path:
        """Write the quantised network of `prepared`, or of a copy with quantised weights."""
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        with replacing(to) as temporary, self._refused(), _quiet():
            quantize_static(
                source,
                temporary,
                calibration_data_reader=None,
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=self._reduce_range,
                nodes_to_quantize=None if only is None else _names(only),
                nodes_to_exclude=_names(without),
                calibration_cache_path=self._file(self.ranges, "json"),
                extra_options=copy.deepcopy(self._grids),  # the quantiser may change them
            )
            if not self._grids.get("QuantizeBias", True):  # its inputs are signs
                round_only_for_layers(temporary)
        return to

    def _save_ranges(
        self, batches: Sequence[NDArray[np.float32]], ranges: Sequence[str]
    ) -> NDArray[np.float32]:
        """Write the ranges that each method chooses; return the outputs for the batches."""
        seen, outputs = activations(self.prepared, batches)
        for name in ranges:
            ranges_of = {n: RANGES[name](each) for n, each in seen.items()}
            _save_ranges(ranges_of, self._file(name, "json"))
        return outputs

    def _file(self, ranges: str, kind: str) -> Path:
        return Path(self._folder.name, f"{ranges}.{kind}")

    def _closest(
        self,
        ranges: Sequence[str],
        batches: Sequence[NDArray[np.float32]],
        expected: NDArray[np.float32],
    ) -> str:
        """Return the method for ranges with the least mean squared error of the outputs."""
        as_defined = not self._reduce_range and sums_saturate()
        errors: dict[str, float] = {}
        source = self.prepared
        for self.ranges in ranges:
            made = self._write(source, self._file(self.ranges, "onnx"))
            if has_large_biases(made):
                if source != self.prepared:
                    source = self.prepared
                    self._write(source, made)
            elif not errors and not self._grids:
                source = reuse_weights(self.prepared, made, Path(self._folder.name, "weights.onnx"))
            with self._refused():
                found = _outputs(made, batches, as_defined)
            errors[self.ranges] = float(np.square(found - expected).mean())
        return min(errors, key=errors.__getitem__)

    def _refused(self) -> contextlib.AbstractContextManager[None]:
        return quantisation_errors(self._source)


def prepare(source: Path, to: Path) -> None:
    """Write a network as the quantiser needs it: simplified, with shapes, named nodes, own biases.

    Raises:
        ArtifactError: The file is damaged or cannot be simplified.
    """
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with quantisation_errors(source), _quiet():
        check_graph(source)
        if external_files(source):  # which ONNX Runtime's tool does not find
            onnx.save(read_whole_model(source), to)
            source = to
        quant_pre_process(source, to, skip_symbolic_shape=True)
        _tell_apart(to)


def quantize_int8(
    source: Path,
    to: Path,
    batches: Sequence[NDArray[np.float32]],
    ranges: Sequence[str] = tuple(RANGES),
    reduce_range: bool | None = None,
) -> Path:
    """Quantise a whole network; see `Int8Quantizer`.

    Raises:
        ArtifactError: The file cannot be quantised.
        StorageError: ``to`` cannot be written.
    """
    with Int8Quantizer(source, batches, ranges, reduce_range) as quantizer:
        return quantizer.write(to)


def random_batches(
    input_shape: tuple[int, ...], batch: int, count: int = 4
) -> list[NDArray[np.float32]]:
    """Return standard normal inputs, which suffice for timing but not for a network that ships."""
    rng = np.random.default_rng(0)
    shape = (batch, *input_shape)
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(count)]


def _tell_apart(model: Path) -> None:
    """Name each node that has no name, so that it can be left out, and give each its own bias.

    ONNX Runtime copies a bias of several nodes, whose scales differ, but the name of its copy
    may be that of another tensor: the first copy of ``val_12`` is ``val_120``.
    """
    import onnx

    loaded = onnx.load(model)
    tensors = {tensor.name: tensor for tensor in loaded.graph.initializer}
    taken = set[str]()
    for index, node in enumerate(loaded.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
        bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
        if bias in taken:
            copy = loaded.graph.initializer.add()
            copy.CopyFrom(tensors[bias])
            copy.name = node.input[_BIAS] = f"{bias}_of_{node.name}"
        elif bias in tensors:
            taken.add(bias)
    onnx.save(loaded, model)


def _names(units: Sequence[Unit]) -> list[str]:
    return [name for unit in units for name in unit.nodes]


def _outputs(
    model: Path, batches: Sequence[NDArray[np.float32]], as_defined: bool = False
) -> NDArray[np.float64]:
    """Return the outputs of a file, without fused operators if they are wanted as ONNX defines."""
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    if as_defined:
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model, options, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {source: batch})[0] for batch in batches], dtype=float)


def _save_ranges(ranges: Mapping[str, Range], path: Path) -> None:
    """Write ranges in the format in which ONNX Runtime's tools cache calibration ranges."""
    from onnxruntime.quantization.calibrate import (
        CalibrationMethod,
        TensorsData,
        save_tensors_data,
    )

    data = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), path)


@contextlib.contextmanager
def quantisation_errors(source: Path) -> Iterator[None]:
    """Raise an ArtifactError that names a file for any error of ONNX Runtime's tools."""
    try:
        yield
    except HwnasError:
        raise
    except Exception as error:  # ONNX Runtime's tools may raise anything
        reason = first_line(error)
        raise ArtifactError(f"{source} cannot be quantised to int8: {reason}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress ONNX Runtime's advice to do steps that are already done."""
    import onnxruntime

    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    onnxruntime.set_default_logger_severity(_ERRORS)
    try:
        yield
    finally:
        root.setLevel(level)
        onnxruntime.set_default_logger_severity(_WARNINGS)
