"""Contribution of each layer's update, measured by short fine-tunings of that layer alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.joint_graph import JointGraph
from hwnas.deploy.finetuning.layers import SHARES, TrainableLayer
from hwnas.deploy.finetuning.scheme import LayerUpdate, UpdateScheme
from hwnas.deploy.finetuning.training import (
    Batches,
    FineTuningSettings,
    ProgramTrainer,
    network_tensors,
)

__all__ = ["Contributions", "LayerContribution", "measured_contributions"]


@dataclass(frozen=True)
class LayerContribution:
    """Decrease of the loss on held-out images by the update of one layer alone.

    Attributes:
        bias: Decrease if the bias is trained; 0 without one.
        weight: Decrease if a share of the weight is trained, by share.
    """

    bias: float = 0.0
    weight: Mapping[float, float] = field(default_factory=dict)

    def of(self, update: LayerUpdate) -> float:
        """Return the contribution of an update: those of weight and bias add up."""
        return self.weight.get(update.weight, 0.0) + (self.bias if update.bias else 0.0)


@dataclass(frozen=True)
class Contributions:
    """Contributions of all layers.

    Attributes:
        layers: Contribution of each layer by name.
        loss: Loss on the held-out images before any update.
    """

    layers: Mapping[str, LayerContribution]
    loss: float

    def of(self, scheme: UpdateScheme) -> float:
        """Return the contribution of a scheme: those of its layers add up."""
        return sum(self.layers[name].of(update) for name, update in scheme.layers.items())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        layers = {
            name: {"bias": each.bias, "weight": {f"{s:g}": v for s, v in each.weight.items()}}
            for name, each in self.layers.items()
        }
        return {"loss": self.loss, "layers": layers}


def measured_contributions(
    network: nn.Module,
    graph: JointGraph,
    batches: Callable[[], Batches],
    held_out: Sequence[tuple[Tensor, Tensor]],
    settings: FineTuningSettings,
    advance: Callable[[float, str], None] = lambda share, name: None,
) -> Contributions:
    """Return the contribution of each layer, as Lin et al. (NeurIPS 2022, section 3.2) measure it.

    For each layer, its bias and its weight are fine-tuned alone, each from the given weights and on
    the same images. The contribution of a part of the weight is that of the whole weight times the
    part's share of the squared gradients, which is its share of the decrease to first order.

    Args:
        network: Network that the graph is of; it is as before afterwards.
        graph: Joint graph for the size of the batches.
        batches: Function that returns the batches of a fine-tuning, always the same.
        held_out: Images and classes that the loss is measured on, in batches.
        settings: Settings of each short fine-tuning.
        advance: Function that gets the share that is done, and the name of the layer.
    """
    scratch = copy.deepcopy(network)
    probe = _Probe(scratch, graph, batches, held_out, settings)
    before = probe.loss()
    found = {}
    for place, layer in enumerate(graph.layers):
        advance(place / len(graph.layers), layer.name)
        has_bias = layer.bias is not None
        bias = before - probe.loss_after(layer, LayerUpdate()) if has_bias else 0.0
        after = probe.loss_after(layer, LayerUpdate(1.0, bias=False))
        weight = {share: (before - after) * probe.energy(layer, share) for share in SHARES}
        found[layer.name] = LayerContribution(bias, weight)
    return Contributions(found, before)


class _Probe:
    """Short fine-tunings of one layer each, and the loss after them."""

    def __init__(
        self,
        network: nn.Module,
        graph: JointGraph,
        batches: Callable[[], Batches],
        held_out: Sequence[tuple[Tensor, Tensor]],
        settings: FineTuningSettings,
    ) -> None:
        self._network, self._graph, self._batches = network, graph, batches
        self._held_out, self._settings = held_out, settings
        self._squares = torch.zeros(())  # of the gradients, by row of the axis of channels

    @torch.no_grad()
    def loss(self) -> float:
        """Return the mean loss on the held-out images."""
        losses = [F.cross_entropy(self._network(x), y, reduction="sum") for x, y in self._held_out]
        return float(sum(losses) / sum(len(y) for _, y in self._held_out))

    def loss_after(self, layer: TrainableLayer, update: LayerUpdate) -> float:
        """Return the loss after an update of a layer, which is then undone."""
        program = compile_scheme(self._graph, UpdateScheme({layer.name: update}))
        tensors = network_tensors(self._network)
        [trained] = program.tensors
        old = tensors[trained.parameter].clone()
        trainer, batches = ProgramTrainer(tensors, program, self._settings), self._batches()
        squares = torch.zeros(())
        for number in range(self._settings.steps):
            gradient = trainer.step(number, *next(batches))[trained]
            others = [axis for axis in range(gradient.dim()) if axis != layer.axis]
            squares = squares + (gradient.square().sum(others) if others else gradient.square())
        self._squares = squares
        found = self.loss()
        tensors[trained.parameter].copy_(old)
        return found

    def energy(self, layer: TrainableLayer, share: float) -> float:
        """Return the share of the squared gradients of the last update that a part has."""
        part = self._squares[: layer.rows(layer.width(share))].sum()
        return float(part / self._squares.sum().clamp_min(torch.finfo(torch.float32).tiny))
