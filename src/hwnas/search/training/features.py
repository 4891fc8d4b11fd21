"""Distillation of features: outputs of layers, compared between a network and its teacher."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

__all__ = ["feature_loss", "recorded_features"]

_LAYERS = (nn.Conv2d, nn.Linear)


@contextlib.contextmanager
def recorded_features(network: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Yield a dict that forward passes fill with the outputs of convolutions and linear layers.

    Args:
        network: Network; the hooks are removed at the end.
    """
    found: dict[str, Tensor] = {}

    def hook(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def record(_: nn.Module, __: object, outputs: Tensor) -> None:
            found[name] = outputs

        return layer.register_forward_hook(record)

    layers = [(name, each) for name, each in network.named_modules() if isinstance(each, _LAYERS)]
    handles = [hook(name, layer) for name, layer in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def feature_loss(student: Mapping[str, Tensor], teacher: Mapping[str, Tensor]) -> Tensor:
    """Return the mean over layers of the squared distance of outputs, relative to the teacher's.

    It is the distillation of features of GPUSQ-ViT (Yu et al., CVPR 2023), here with every layer,
    so that it applies to networks of any kind.

    Args:
        student: Outputs of layers by name.
        teacher: Outputs of the same layers for the same images; they get no gradient. Layers whose
            outputs have another shape are left out.

    Returns:
        A scalar; 0 if no layer can be compared.
    """
    losses = []
    for name, ours in student.items():
        theirs = teacher.get(name)
        if theirs is not None and theirs.shape == ours.shape:
            wanted = theirs.detach().float()
            squares = wanted.square().mean().clamp_min(torch.finfo(torch.float32).tiny)
            losses.append((ours.float() - wanted).square().mean() / squares)
    return torch.stack(losses).mean() if losses else torch.zeros(())
