"""Strategy of PC-DARTS: mixtures of all operators on a part of the channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search.strategies.strategy import Strategy, StrategyPlugin, StrategyStep, Update
from hwnas.search.training.batch import Batch
from hwnas.search.training.steps import StepContext
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.layers import ChannelShuffle
from hwnas.search_spaces.space.choices import Option
from hwnas.search_spaces.supernet.block_space import BlockSpace
from hwnas.search_spaces.supernet.relaxed import RelaxedSpace

__all__ = ["PLUGINS", "PCDarts"]


@dataclass(frozen=True)
class PCDarts(Strategy):
    """Partial channels and edge normalisation (Xu et al., "PC-DARTS", ICLR 2020, section 3).

    At each place all operators run on one of ``divisor`` parts of the channels, and their outputs
    are added with their probabilities (DARTS, Liu et al., ICLR 2019, equation 2); the other
    channels pass, and all channels are shuffled (equation 1). With edge normalisation, the edges
    that end at the same node of a cell are weighted by a softmax of their own (equation 2).

    The weights are those of the mixture. They do not score single networks, so the candidates have
    to be trained.

    Attributes:
        divisor: Parts of the channels, of which one goes through the operators; K in the paper.
        edge_normalisation: Whether the edges are weighted.
    """

    divisor: int = 4
    edge_normalisation: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.divisor < 1:
            raise ConfigError(f"divisor is {self.divisor}; expected at least 1")

    trains_networks = False

    def relaxed(self, space: SearchSpace) -> RelaxedSpace | None:
        """See `Strategy.relaxed`; the operators work on a part of the channels."""
        super().relaxed(space)
        assert isinstance(space, BlockSpace)
        return RelaxedSpace(space, self.divisor)

    def update(
        self, work: StrategyStep, batch: Batch, moment: StepContext, direction: int
    ) -> Update:
        """See `Strategy.update`."""
        logits = work.distribution.logits.value[direction].detach().clone().requires_grad_()
        edges = work.distribution.edges.value[direction].detach().clone().requires_grad_()
        loss, drawn = self._loss(work, batch, moment, direction, logits, edges)
        gradient, by_edge = torch.autograd.grad(loss, [logits, edges], allow_unused=True)
        return Update(loss.detach(), drawn, gradient, edges=by_edge)

    def trained(
        self, work: StrategyStep, moment: StepContext, direction: int
    ) -> Callable[[Batch], Tensor]:
        """Return the function from images to the loss of the mixture."""
        logits = work.distribution.logits.value[direction]
        edges = work.distribution.edges.value[direction]
        return lambda part: self._loss(work, part, moment, direction, logits, edges)[0]

    def _loss(
        self,
        work: StrategyStep,
        part: Batch,
        moment: StepContext,
        direction: int,
        logits: Tensor,
        edges: Tensor,
    ) -> tuple[Tensor, Mapping[str, Option]]:
        space = work.supernet.space
        probabilities = work.distribution.of_logits(logits)
        shares = self._shares(space, work.index_of, edges)

        def gate_of(choice: str) -> _Mixture:
            index = work.index_of[choice]
            options = map(str, space.choices[index].options)
            weights = dict(zip(options, probabilities[index], strict=False))
            return _Mixture(weights, shares.get(choice), self.divisor)

        return work.relaxed_loss(part, moment, direction, gate_of)

    def _shares(
        self, space: SearchSpace, names: Mapping[str, int], edges: Tensor
    ) -> Mapping[str, Tensor]:
        """Return the weight of each edge among those that end at the same node."""
        found: dict[str, Tensor] = {}
        assert isinstance(space, BlockSpace)
        for group in space.summed if self.edge_normalisation else ():
            weights = edges[[names[name] for name in group]].softmax(0)
            found |= dict(zip(group, weights, strict=True))
        return found


@dataclass(frozen=True)
class _Mixture:
    """Gate that adds the outputs of all operators for the first part of the channels.

    Attributes:
        weights: Probability of each operator.
        share: Weight of the whole output; 1 if None.
        divisor: Parts of the channels.
    """

    weights: Mapping[str, Tensor]
    share: Tensor | None
    divisor: int

    def __call__(self, x: Tensor, operators: Mapping[str, nn.Module]) -> Tensor:
        channels = x.shape[1] // self.divisor
        part = x[:, :channels]
        y = torch.zeros_like(part)
        for name, operator in operators.items():
            y = y + self.weights[name] * operator(part)
        if self.divisor > 1:
            y = torch.cat([y, x[:, channels:]], 1)
            y = ChannelShuffle(self.divisor)(y)
        return y if self.share is None else self.share * y


PLUGINS = (
    StrategyPlugin(
        "search strategy",
        "pc-darts",
        PCDarts,
        "Mixtures of operators on a part of the channels (PC-DARTS)",
    ),
)
