"""Comparison of an ONNX file with the network that it was exported from: inputs and tolerances."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.deploy.error_line import first_line
from hwnas.deploy.io import Preprocessing
from hwnas.errors import ConfigError

__all__ = [
    "TOLERANCE",
    "Agreement",
    "CheckBatch",
    "agreement",
    "check_batches",
    "outputs_of",
    "relative_error",
]

TOLERANCE = 1e-4
"""Largest allowed difference, as a share of the largest output."""
_EXTREME_TOLERANCE = 1e-3
"""`TOLERANCE` for extreme inputs, which resemble no image: a sum over many equal values accumulates
rounding errors, and each library sums in another order."""
_SIZES = (1, 3, 8)
_EXTREME_SIZES = (3,)
"""Sizes of batches of extreme inputs. The other batches already show whether outputs depend on the
batch size."""
_MAGNITUDES = (10, 1000)
"""Factors that turn random inputs into large inputs."""


@dataclass(frozen=True, eq=False)
class CheckBatch:
    """Batch of inputs on which a file and a network are compared.

    Attributes:
        kind: Description of the inputs, for messages.
        images: Inputs, float32 (N, C, H, W).
        extreme: True if the inputs resemble no image, so that numbers may overflow.
    """

    kind: str
    images: Tensor
    extreme: bool = False

    @property
    def tolerance(self) -> float:
        """Largest allowed difference on this batch, as a share of the largest output."""
        return _EXTREME_TOLERANCE if self.extreme else TOLERANCE

    def __str__(self) -> str:
        return f"{self.kind}, {len(self.images)} at once"


@dataclass(frozen=True)
class Agreement:
    """Difference between a file and the network that it was exported from, over several batches.

    Attributes:
        relative: Largest difference on inputs that are not extreme, each as a share of the largest
            output of its batch; if there is a `worst` batch, the difference on that batch.
        absolute: Largest absolute difference on inputs that are not extreme.
        batches: Number of batches compared.
        inconclusive: Extreme batches on which the two differ without evidence against the file:
            PyTorch itself, in single precision, overflows there or differs from double precision by
            more than is allowed.
        worst: First batch on which the two differ by more than is allowed, or None. Later batches
            are not compared.
    """

    relative: float
    absolute: float
    batches: int
    inconclusive: tuple[str, ...] = ()
    worst: CheckBatch | None = None


def relative_error(outputs: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference as a share of the largest expected value.

    The result is infinite if the shapes differ.
    """
    if outputs.shape != expected.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):  # inf - inf and inf / inf are NaN
        difference = np.abs(outputs.astype(np.float64) - expected).max()
        return float(difference / max(np.abs(expected).max(), 1e-12))


def check_batches(
    input_shape: tuple[int, int, int],
    examples: Tensor | None = None,
    preprocessing: Preprocessing | None = None,
) -> list[CheckBatch]:
    """Return random and real inputs in batches of 1, 3 and 8, and extreme inputs in batches of 3.

    Args:
        input_shape: Channels, height and width.
        examples: Real inputs, float32 (N, *input_shape).
        preprocessing: Preprocessing that defines the darkest and the brightest image. Without it,
            these two images are left out.

    Raises:
        ConfigError: ``examples`` has another shape or is empty.
    """
    random = torch.randn(max(_SIZES), *input_shape, generator=torch.Generator().manual_seed(0))
    kinds = [CheckBatch("random inputs", random)]
    if examples is not None:
        kinds.append(CheckBatch("real images", _real(examples, input_shape)))
    kinds.append(CheckBatch("zeros", torch.zeros_like(random), extreme=True))
    if preprocessing is not None:
        kinds.append(CheckBatch("the brightest and darkest image", _pixels(preprocessing), True))
    kinds += [CheckBatch(f"random inputs times {m}", random * m, True) for m in _MAGNITUDES]
    return [
        CheckBatch(kind.kind, kind.images[:size], kind.extreme)
        for kind in kinds
        for size in (_EXTREME_SIZES if kind.extreme else _SIZES)
    ]


def _real(examples: Tensor, input_shape: tuple[int, int, int]) -> Tensor:
    if tuple(examples.shape[1:]) != tuple(input_shape) or not len(examples):
        raise ConfigError(
            f"examples have shape {tuple(examples.shape)}; expected (N, *{input_shape})"
        )
    rows = torch.arange(max(_SIZES)) % len(examples)
    return examples[rows].detach().float().cpu().contiguous()


def _pixels(preprocessing: Preprocessing) -> Tensor:
    """Return alternating white and black images after normalisation."""
    channels, height, width = preprocessing.input_shape
    images = torch.zeros(max(_SIZES), height, width, channels, dtype=torch.uint8)
    images[::2] = 255
    return preprocessing(images).contiguous()


@torch.no_grad()
def outputs_of(network: nn.Module, images: Tensor) -> NDArray[Any]:
    """Return the outputs of a network for a batch of images.

    Raises:
        ConfigError: The network does not accept these inputs, or does not return one tensor with a
            row for each image.
    """
    name = type(network).__name__
    try:
        outputs = network(images)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = first_line(error)
        raise ConfigError(
            f"{name} does not take inputs of shape {tuple(images.shape)}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"{name} returns {type(outputs).__name__}; expected one tensor")
    if outputs.shape[:1] != images.shape[:1]:
        raise ConfigError(
            f"{name} returns {tuple(outputs.shape)} for {len(images)} images; expected one row each"
        )
    array: NDArray[Any] = outputs.numpy()
    return array


def agreement(
    run: Callable[[NDArray[np.float32]], NDArray[Any]],
    network: nn.Module,
    batches: Sequence[CheckBatch],
    expected: Sequence[NDArray[Any]],
) -> Agreement:
    """Compare a file with a network batch by batch, up to the first batch on which they differ.

    Args:
        run: Function that returns the outputs of the file for a batch.
        network: Network that the file was exported from, in evaluation mode.
        batches: Batches to compare on.
        expected: Outputs of the network for each batch.
    """
    relative = absolute = 0.0
    inconclusive: list[str] = []
    for batch, known in zip(batches, expected, strict=True):
        found = run(batch.images.numpy())
        error = relative_error(found, known)
        if not error <= batch.tolerance:  # also true for NaN
            if not batch.extreme or _is_exact(network, batch.images, known):
                return Agreement(error, absolute, len(batches), tuple(inconclusive), batch)
            inconclusive.append(str(batch))
        elif not batch.extreme:
            relative = max(relative, error)
            absolute = max(absolute, float(np.abs(found - known).max()))
    return Agreement(relative, absolute, len(batches) - len(inconclusive), tuple(inconclusive))


def _is_exact(network: nn.Module, images: Tensor, known: NDArray[Any]) -> bool:
    """Return whether single precision suffices for a batch, compared with double precision."""
    try:
        exact = outputs_of(copy.deepcopy(network).double(), images.double())
    except ConfigError:  # the network runs in single precision only
        return True
    return relative_error(known, exact) <= TOLERANCE
