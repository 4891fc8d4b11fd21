"""Deepening: the first weights of new layers, with which a network keeps its function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

__all__ = ["fewest", "make_identity", "new_layers", "silence"]


def new_layers(network: nn.Module, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of the modules with parameters of their own that are not known.

    Args:
        network: Network with new layers.
        known: Names of the tensors of the network without them.
    """
    parameters = (name for name, _ in network.named_parameters() if name not in known)
    return tuple(dict.fromkeys(name.rpartition(".")[0] for name in parameters))


def silence(network: nn.Module, layers: Sequence[str], known: Collection[str]) -> None:
    """Set all new parameters of layers to 0, in place.

    A residual block whose last layer is silent is the identity, as in Goyal et al., "Accurate,
    Large Minibatch SGD" (2017, section 5.1). The layer still gets gradients.

    Args:
        network: Network with the layers.
        layers: Names of the layers.
        known: Names of tensors that stay.
    """
    with torch.no_grad():
        for layer in layers:
            for key, parameter in network.get_submodule(layer).named_parameters(recurse=False):
                if (f"{layer}.{key}" if layer else key) not in known:
                    parameter.zero_()


def fewest(layers: Sequence[str], keeps: Callable[[Sequence[str]], bool]) -> tuple[str, ...] | None:
    """Return a smallest sufficient part of layers, preferring late ones; None if there is none.

    No layer of the part can be left out.

    Args:
        layers: Names of layers, in the order of the network.
        keeps: Function that returns whether silencing some of the layers is sufficient.
    """
    if not keeps(layers):
        return None
    chosen = list(layers)
    for layer in layers:
        rest = [other for other in chosen if other != layer]
        if keeps(rest):
            chosen = rest
    return tuple(chosen)


def make_identity(network: nn.Module, layers: Sequence[str], inputs: Tensor) -> None:
    """Let layers return their input, in place (Net2DeeperNet, Chen et al., ICLR 2016, section 2.3).

    Convolutions get the identity kernel and linear layers the identity matrix. Batch normalisation
    gets the statistics of its input as running statistics, and a scale and an offset that undo the
    normalisation; so the function is also kept for batches, up to the noise of their statistics.
    PReLU gets the slope 1. Whether the network then keeps its function depends on what is between
    these layers: ReLU, which is idempotent, keeps it, and GELU does not.

    Args:
        network: Network in evaluation mode.
        layers: Names of the layers; those of other kinds are left unchanged.
        inputs: Inputs (N, C, H, W) from which the statistics are computed.
    """
    handles = []
    with torch.no_grad():
        for layer in map(network.get_submodule, layers):
            if isinstance(layer, _ConvNd | nn.Linear):
                _pass_on(layer)
            elif isinstance(layer, nn.PReLU):
                layer.weight.fill_(1.0)
            elif isinstance(layer, _BatchNorm) and layer.affine and layer.track_running_stats:
                handles.append(layer.register_forward_pre_hook(_undo))
        try:
            if handles:
                network(inputs)
        finally:
            for handle in handles:
                handle.remove()


def _pass_on(layer: _ConvNd | nn.Linear) -> None:
    """Let the first outputs of a layer be its inputs; further outputs keep their weights."""
    weight = layer.weight
    groups = layer.groups if isinstance(layer, _ConvNd) else 1
    first = min(weight.shape[0], weight.shape[1] * groups)
    centre = tuple(size // 2 for size in weight.shape[2:])
    weight[:first] = 0.0
    for row in range(first):
        weight[(row, row % weight.shape[1], *centre)] = 1.0
    if layer.bias is not None:
        layer.bias[:first] = 0.0


def _undo(norm: nn.Module, args: tuple[Tensor]) -> None:
    """Set statistics of a batch normalisation to those of its input, and undo it."""
    assert isinstance(norm, _BatchNorm)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    values = args[0].transpose(0, 1).flatten(1)
    norm.running_mean.copy_(values.mean(1))
    norm.running_var.copy_(values.var(1, correction=0))
    norm.weight.copy_((norm.running_var + norm.eps).sqrt())
    norm.bias.copy_(norm.running_mean)
