"""Integer arithmetic: ONNX files with their tensors quantised to eight bits, all or some."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import replacing
from hwnas.deploy.first_line import first_line
from hwnas.deploy.onnx_graph import check_graph
from hwnas.deploy.processor import sums_saturate
from hwnas.deploy.ranges import RANGES, Range, activations
from hwnas.errors import ArtifactError

__all__ = ["Int8Quantizer", "Unit", "quantize_int8", "random_batches"]

_WARNINGS, _ERRORS = 2, 3  # severities of ONNX Runtime's log; the first is its default
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Unit:
    """What is quantised together or not at all.

    Attributes:
        name: Of the layer, or of the operator where that has no weights.
        nodes: Names of the nodes in the graph.
    """

    name: str
    nodes: tuple[str, ...]


class Int8Quantizer:
    """Quantises one network, in whole or in parts, with ranges that are found once.

    Static, QDQ format, activations unsigned, weights signed and per channel. U8S8 is what x86
    multiplies fastest; S8S8 and dynamic quantisation are several times slower on convolutions
    there. Where the processor would cut off sums of such products, weights have seven bits. A
    context manager, since it keeps files of its own.

    Args:
        source: An ONNX file with one float32 input.
        batches: Inputs (N, ...) that the ranges of activations are taken from.
        ranges: How, one or more of `hwnas.deploy.ranges.RANGES`; of several, the one with which the
            whole network quantised computes what is closest to the network in fp32 on ``batches``.
        reduce_range: Whether weights are from -64 to 64, so that no sum of two products can
            overflow 16 bits; if None where this machine's processor needs that.

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
        self._prepared = Path(self._folder.name, "prepared.onnx")
        try:
            with self._refused(), _quiet():
                self._prepare(batches, ranges)
            self.ranges = ranges[0] if len(ranges) == 1 else self._closest(ranges, batches)
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

    @property
    def units(self) -> list[Unit]:
        """What can be left out: every layer with weights, and operators without, by their kind."""
        import onnx
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        graph = onnx.load(self._prepared).graph
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
            to: The file to write.
            only: Quantise these and nothing else; all if None.
            without: Leave these in floating point.

        Returns:
            ``to``.

        Raises:
            ArtifactError: The file cannot be quantised.
            StorageError: ``to`` cannot be written.
        """
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        with replacing(to) as temporary, self._refused(), _quiet():
            quantize_static(
                self._prepared,
                temporary,
                calibration_data_reader=None,
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=self._reduce_range,
                nodes_to_quantize=None if only is None else _names(only),
                nodes_to_exclude=_names(without),
                calibration_cache_path=self._file(self.ranges),
            )
        return to

    def _prepare(self, batches: Sequence[NDArray[np.float32]], ranges: Sequence[str]) -> None:
        from onnxruntime.quantization.shape_inference import quant_pre_process

        check_graph(self._source)
        quant_pre_process(self._source, self._prepared, skip_symbolic_shape=True)
        _name_nodes(self._prepared)
        seen = activations(self._prepared, batches)
        for name in ranges:
            _save_ranges({n: RANGES[name](each) for n, each in seen.items()}, self._file(name))

    def _file(self, ranges: str) -> Path:
        return Path(self._folder.name, f"{ranges}.json")

    def _closest(self, ranges: Sequence[str], batches: Sequence[NDArray[np.float32]]) -> str:
        """With which ranges the outputs differ least, in the mean of squares."""
        with self._refused():
            expected = _outputs(self._source, batches)
        errors = {}
        for self.ranges in ranges:
            made = self.write(Path(self._folder.name, "compared.onnx"))
            with self._refused():
                errors[self.ranges] = float(np.square(_outputs(made, batches) - expected).mean())
        return min(errors, key=errors.__getitem__)

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except ArtifactError:
            raise
        except Exception as error:  # ONNX Runtime's tools raise whatever they meet
            reason = first_line(error)
            raise ArtifactError(f"{self._source} cannot be quantised to int8: {reason}") from error


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
    """Standard normal inputs: enough for timing, not for the accuracy of what ships."""
    rng = np.random.default_rng(0)
    shape = (batch, *input_shape)
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(count)]


def _name_nodes(model: Path) -> None:
    """Give a name to each node that has none, so that it can be left out."""
    import onnx

    loaded = onnx.load(model)
    for index, node in enumerate(loaded.graph.node):
        node.name = node.name or f"{node.op_type}_{index}"
    onnx.save(loaded, model)


def _names(units: Sequence[Unit]) -> list[str]:
    return [name for unit in units for name in unit.nodes]


def _outputs(model: Path, batches: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
    from onnxruntime import InferenceSession

    session = InferenceSession(model, providers=["CPUExecutionProvider"])
    source = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {source: batch})[0] for batch in batches], dtype=float)


def _save_ranges(ranges: Mapping[str, Range], path: Path) -> None:
    """Write ranges as ONNX Runtime's tools read those that they have found themselves."""
    from onnxruntime.quantization.calibrate import (
        CalibrationMethod,
        TensorsData,
        save_tensors_data,
    )

    data = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back advice to do what has been done."""
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
