"""Whether a file computes what a network does: on which inputs, and how near is near enough."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.deploy.first_line import first_line
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
"""Largest difference that is allowed, as a share of the largest output."""
_EXTREME_TOLERANCE = 1e-3
"""The same on inputs that no image looks like: a sum over many equal values adds up its rounding,
and each library sums in another order."""
_SIZES = (1, 3, 8)
_EXTREME_SIZES = (3,)
"""Of batches of inputs that are extreme: what depends on the batch shows in the others."""
_MAGNITUDES = (10, 1000)
"""What random inputs are multiplied by to be large."""


@dataclass(frozen=True, eq=False)
class CheckBatch:
    """Inputs to compare on.

    Attributes:
        kind: What they are, in words.
        images: float32 (N, C, H, W).
        extreme: Whether no image looks like that, so that numbers may overflow.
    """

    kind: str
    images: Tensor
    extreme: bool = False

    @property
    def tolerance(self) -> float:
        """Largest difference that is allowed on them, as a share of the largest output."""
        return _EXTREME_TOLERANCE if self.extreme else TOLERANCE

    def __str__(self) -> str:
        return f"{self.kind}, {len(self.images)} at once"


@dataclass(frozen=True)
class Agreement:
    """How far a file is from the network it was made of, over several batches.

    Attributes:
        relative: Largest difference on inputs that are not extreme, each as a share of the largest
            output of its batch; where the two differ, that of the batch on which they do.
        absolute: Largest difference on inputs that are not extreme, as it is.
        batches: How many were compared.
        inconclusive: Extreme batches on which the two differ and which yet say nothing of the
            file: PyTorch itself, in single precision, overflows there or is further from double
            precision than is allowed.
        worst: The first batch on which the two differ by more than is allowed; None if there is
            none. The others were not looked at then.
    """

    relative: float
    absolute: float
    batches: int
    inconclusive: tuple[str, ...] = ()
    worst: CheckBatch | None = None


def relative_error(outputs: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest difference as a share of the largest expected value; infinite if shapes differ."""
    if outputs.shape != expected.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):  # infinity less infinity, or over it, is no number
        difference = np.abs(outputs.astype(np.float64) - expected).max()
        return float(difference / max(np.abs(expected).max(), 1e-12))


def check_batches(
    input_shape: tuple[int, int, int],
    examples: Tensor | None = None,
    preprocessing: Preprocessing | None = None,
) -> list[CheckBatch]:
    """Random and real inputs in batches of 1, 3 and 8, and extreme ones in a batch of 3.

    Args:
        input_shape: Channels, height and width.
        examples: Real inputs, float32 (N, *input_shape).
        preprocessing: Tells what the darkest and the brightest image are.

    Raises:
        ConfigError: The examples have another shape, or there are none.
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
    """White, black, white, ... after normalisation."""
    channels, height, width = preprocessing.input_shape
    images = torch.zeros(max(_SIZES), height, width, channels, dtype=torch.uint8)
    images[::2] = 255
    return preprocessing(images).contiguous()


@torch.no_grad()
def outputs_of(network: nn.Module, images: Tensor) -> NDArray[Any]:
    """What a network gives for a batch.

    Raises:
        ConfigError: It does not take such inputs, or gives something else than a tensor with a
            row for each.
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
    """Compare a file with a network, batch by batch, up to the first one on which they differ.

    Args:
        run: Gives the file's outputs for a batch.
        network: What it was made of; in evaluation mode.
        batches: What to compare on.
        expected: The network's outputs for each batch.
    """
    relative = absolute = 0.0
    inconclusive: list[str] = []
    for batch, known in zip(batches, expected, strict=True):
        found = run(batch.images.numpy())
        error = relative_error(found, known)
        if not error <= batch.tolerance:  # also where it is not a number
            if not batch.extreme or _is_exact(network, batch.images, known):
                return Agreement(error, absolute, len(batches), tuple(inconclusive), batch)
            inconclusive.append(str(batch))
        elif not batch.extreme:
            relative = max(relative, error)
            absolute = max(absolute, float(np.abs(found - known).max()))
    return Agreement(relative, absolute, len(batches) - len(inconclusive), tuple(inconclusive))


def _is_exact(network: nn.Module, images: Tensor, known: NDArray[Any]) -> bool:
    """Whether single precision suffices for a batch, as far as PyTorch can tell."""
    try:
        exact = outputs_of(copy.deepcopy(network).double(), images.double())
    except ConfigError:  # a network that insists on single precision
        return True
    return relative_error(known, exact) <= TOLERANCE
