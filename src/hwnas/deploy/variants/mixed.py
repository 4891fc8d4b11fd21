"""Mixed-precision quantisation, which keeps the most sensitive layers in floating point."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.deploy.quantization.quantize import Int8Quantizer, Unit
from hwnas.deploy.runtimes import RUNTIMES
from hwnas.deploy.targets.target import Device, Target

__all__ = ["Sensitivity", "mixed_int8", "sensitivities"]

_MOST_IMAGES = 128


@dataclass(frozen=True)
class Sensitivity:
    """Sensitivity of the outputs to quantising one unit alone.

    Attributes:
        unit: Quantised unit.
        error: Mean squared error of the outputs, as a share of their variance; not negative.
    """

    unit: Unit
    error: float


def sensitivities(
    source: Path, quantizer: Int8Quantizer, batches: Sequence[NDArray[np.float32]]
) -> list[Sensitivity]:
    """Quantise each unit alone and compare the outputs with those of the network in fp32.

    Args:
        source: ONNX file that the quantizer was made from.
        quantizer: Quantizer of that network.
        batches: Inputs (N, ...) to compare on; the first 128 are used.

    Returns:
        One sensitivity for each of the quantizer's units, the most sensitive first.

    Raises:
        ArtifactError: The file cannot be quantised.
    """
    inputs = np.concatenate(list(batches))[:_MOST_IMAGES]
    expected = _outputs(source, inputs)
    scale = max(float(expected.var()), 1e-12)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for index, unit in enumerate(quantizer.units):
            alone = quantizer.write(Path(folder, f"{index}.onnx"), only=[unit])
            error = float(np.square(_outputs(alone, inputs) - expected).mean()) / scale
            found.append(Sensitivity(unit, error))
            alone.unlink()
    return sorted(found, key=lambda each: -each.error)


def mixed_int8(
    source: Path,
    to: Path,
    batches: Sequence[NDArray[np.float32]],
    loss: Callable[[Path], float],
    max_loss: float,
) -> tuple[str, ...]:
    """Quantise all units except the fewest sensitive ones that keep the loss within its limit.

    Units are left out in order of sensitivity, the most sensitive first. Their number is found by
    bisection, which assumes that leaving out more never increases the loss.

    Args:
        source: ONNX file with one float32 input.
        to: File to write.
        batches: Inputs (N, ...) that ranges and sensitivities are taken from.
        loss: Function that returns what a file loses in quality against ``source``.
        max_loss: Largest loss allowed.

    Returns:
        Names of the units that stayed in floating point.

    Raises:
        ArtifactError: The file cannot be quantised.
        StorageError: ``to`` cannot be written.
    """
    with Int8Quantizer(source, batches) as quantizer:
        order = [each.unit for each in sensitivities(source, quantizer, batches)]

        def fails(left_out: int) -> bool:
            return loss(quantizer.write(to, without=order[:left_out])) > max_loss

        least, most = 0, len(order)
        while least < most:
            middle = (least + most) // 2
            least, most = (middle + 1, most) if fails(middle) else (least, middle)
        quantizer.write(to, without=order[:least])
    return tuple(unit.name for unit in order[:least])


def _outputs(model: Path, inputs: NDArray[np.float32]) -> NDArray[np.float64]:
    target = Target(Device("cpu", "onnxruntime"))
    return RUNTIMES["onnxruntime"].load(model, target).run(inputs).astype(np.float64)
