"""Integer arithmetic: an ONNX file with its tensors quantised to eight bits."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.atomic import replacing
from hwnas.errors import ArtifactError

__all__ = ["quantize_int8", "random_batches"]

_WARNINGS, _ERRORS = 2, 3  # severities of ONNX Runtime's log; the first is its default


def quantize_int8(source: Path, to: Path, batches: Sequence[NDArray[np.float32]]) -> Path:
    """Quantise statically: QDQ format, activations unsigned, weights signed and per channel.

    U8S8 is what x86 multiplies fastest; S8S8 and dynamic quantisation are several times slower on
    convolutions there.

    Args:
        source: An ONNX file with one float32 input.
        to: The file to write.
        batches: Inputs (N, ...) that the ranges of activations are taken from.

    Returns:
        ``to``.

    Raises:
        ArtifactError: The file cannot be quantised.
        StorageError: ``to`` cannot be written.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with replacing(to) as temporary, tempfile.TemporaryDirectory() as folder, _quiet():
        prepared = Path(folder, "prepared.onnx")
        try:
            quant_pre_process(source, prepared, skip_symbolic_shape=True)
            quantize_static(
                prepared,
                temporary,
                _Reader(prepared, batches),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
            )
        except Exception as error:  # ONNX Runtime's tools raise whatever they meet
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ArtifactError(f"{source} cannot be quantised to int8: {reason}") from error
    return to


def random_batches(
    input_shape: tuple[int, ...], batch: int, count: int = 4
) -> list[NDArray[np.float32]]:
    """Standard normal inputs: enough for timing, not for the accuracy of what ships."""
    rng = np.random.default_rng(0)
    shape = (batch, *input_shape)
    return [rng.standard_normal(shape, dtype=np.float32) for _ in range(count)]


class _Reader:
    """Gives ONNX Runtime one batch after the other."""

    def __init__(self, path: Path, batches: Sequence[NDArray[np.float32]]) -> None:
        import onnx

        self._name = onnx.load(path, load_external_data=False).graph.input[0].name
        self._batches = batches
        self.rewind()

    def get_next(self) -> dict[str, Any] | None:
        """The next batch by the name of the input, or None after the last."""
        batch = next(self._left, None)
        return None if batch is None else {self._name: batch}

    def rewind(self) -> None:
        """Start with the first batch again."""
        self._left = iter(self._batches)


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
