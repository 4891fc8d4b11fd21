"""Training with fixed normalisation statistics, in less time and memory.

A convolution and a batch normalisation in evaluation mode are one affine map. Eval mode computes
them one after the other and stores the intermediate result for the backward pass. Tune mode
multiplies the normalisation into the weights first, so there is no intermediate result. Outputs and
gradients are the same (You et al., "Efficient ConvBN blocks for transfer learning and beyond", ICLR
2024, section 3.3). Weights of both the convolution and the normalisation are trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from hwnas.deploy.export.conv_norm import ConvNormPair, conv_norm_pairs
from hwnas.search_spaces.supernet.supernet import batch_norms

__all__ = ["fixed_statistics"]


@contextmanager
def fixed_statistics(network: nn.Module) -> Iterator[None]:
    """Let a network's batch normalisations keep their statistics for the duration of a block.

    Where a normalisation follows a convolution, the network computes in Tune mode. Its parameters,
    their names and their order stay the same.
    """
    with ExitStack() as stack:
        for norm in batch_norms(network):
            stack.callback(norm.register_forward_pre_hook(_in_evaluation_mode).remove)
        for pair in conv_norm_pairs(network):
            merge = _Merge(pair)
            stack.callback(pair.conv.register_forward_pre_hook(merge.begin).remove)
            handle = pair.conv.register_forward_hook(merge.end, always_call=True)
            stack.callback(handle.remove)
            vars(pair.norm)["forward"] = _unchanged
            stack.callback(vars(pair.norm).pop, "forward")
        yield


def _in_evaluation_mode(norm: nn.Module, _: object) -> None:
    norm.eval()


def _unchanged(x: Tensor) -> Tensor:
    return x


class _Merge:
    """Hooks of a convolution that multiply a normalisation into its weights in every pass.

    The product is set as an attribute of the module during a pass, which hides the parameter.
    """

    def __init__(self, pair: ConvNormPair) -> None:
        self._norm = pair.norm
        self._shift: Tensor | None = None

    def begin(self, conv: nn.Module, _: object) -> None:
        """Hide the weights by their product with the normalisation's."""
        assert isinstance(conv, nn.Conv2d)
        norm = self._norm
        assert norm.running_mean is not None
        assert norm.running_var is not None
        factor = torch.rsqrt(norm.running_var + norm.eps)
        if norm.affine:
            factor = norm.weight * factor
        shift = factor * ((0 if conv.bias is None else conv.bias) - norm.running_mean)
        if norm.affine:
            shift = shift + norm.bias
        weight = conv.weight * factor[:, None, None, None]
        if conv.bias is None:
            self._shift = shift
            vars(conv).update(weight=weight)
        else:
            vars(conv).update(weight=weight, bias=shift)

    def end(self, conv: nn.Module, _: object, output: Tensor | None) -> Tensor | None:
        """Show the weights again, also after an error; add what no bias of the layer adds."""
        vars(conv).pop("weight", None)
        vars(conv).pop("bias", None)
        shift, self._shift = self._shift, None
        if output is None or shift is None:
            return output
        return output.add_(shift[:, None, None])  # in place: the unshifted output is not needed
