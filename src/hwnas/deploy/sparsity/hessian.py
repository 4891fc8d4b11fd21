"""Second moments of the inputs of a layer, which are the Hessian of its squared output error.

With X the inputs (samples, K) of a layer with matrix W, replacing W by V changes the outputs by
|X (W - V)^T|^2 = tr((W - V) H (W - V)^T), with H = X^T X. Pruning and rounding after training
(Frantar and Alistarh, "Optimal Brain Compression", NeurIPS 2022) both need no more of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hwnas.deploy.sparsity.matrices import Layer, patches

__all__ = ["InputHessian", "damped_inverse", "input_hessian"]

_DAMPING = 0.01  # of the mean of the diagonal, as in SparseGPT and GPTQ


@dataclass(frozen=True, eq=False)
class InputHessian:
    """Mean second moments of a layer's inputs.

    Attributes:
        moments: X^T X / samples, (K, K) float64.
        positions: Products of the layer's matrix with a vector for each image.
    """

    moments: Tensor
    positions: float

    def error(self, change: Tensor) -> float:
        """Return the mean squared change of the outputs, summed over them.

        Args:
            change: Change of the layer's matrix, (outputs, K).
        """
        change = change.to(self.moments)
        return max(0.0, float(((change @ self.moments) * change).sum()))  # rounding aside

    @property
    def damped(self) -> InputHessian:
        """These moments with a small multiple of the identity added.

        An error by these moments also counts the change of the weights themselves. So weights that
        are fitted to it stay near the trained ones where the inputs say nothing about them, which
        is so if there are fewer samples than inputs.
        """
        return replace(self, moments=_damped(self.moments))


class _Reached(Exception):
    """Signal that the inputs of a layer are known."""


def input_hessian(
    network: nn.Module, layer: Layer, batches: Sequence[Tensor]
) -> InputHessian | None:
    """Return the moments of a layer's inputs in a network; None if the layer is never called.

    Args:
        network: Network in evaluation mode.
        layer: Linear layer, or convolution without groups, in the network. If it is called several
            times for a batch, the first call counts.
        batches: Inputs of the network, (N, ...).
    """
    moments = torch.zeros(0, dtype=torch.float64)
    samples = 0

    def see(_: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal moments, samples
        columns = patches(layer, given[0].detach()).double()
        product = columns.T @ columns
        moments = product if samples == 0 else moments + product
        samples += len(columns)
        raise _Reached

    handle = layer.register_forward_pre_hook(see)
    try:
        for batch in batches:
            _run(network, batch)
    finally:
        handle.remove()
    images = sum(len(batch) for batch in batches)
    return InputHessian(moments / samples, samples / images) if samples else None


def damped_inverse(moments: Tensor) -> Tensor:
    """Return the inverse of moments (..., K, K), with a small multiple of the identity added."""
    return torch.cholesky_inverse(torch.linalg.cholesky(_damped(moments)))


def _damped(moments: Tensor) -> Tensor:
    mean = moments.diagonal(dim1=-2, dim2=-1).mean(-1)
    damping = (_DAMPING * mean).clamp_min(torch.finfo(moments.dtype).tiny ** 0.5)
    eye = torch.eye(moments.shape[-1], dtype=moments.dtype)
    return moments + damping[..., None, None] * eye


@torch.no_grad()
def _run(network: nn.Module, batch: Tensor) -> None:
    try:
        network(batch)
    except _Reached:
        return
