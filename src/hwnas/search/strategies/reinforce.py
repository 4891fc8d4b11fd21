"""Strategy that learns all choices with REINFORCE from the losses of sampled networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hwnas.search.strategies.strategy import Strategy, StrategyPlugin, StrategyStep, Update
from hwnas.search.training.batch import Batch
from hwnas.search.training.steps import StepContext
from hwnas.search_spaces import SearchSpace
from hwnas.search_spaces.supernet.relaxed import RelaxedSpace

__all__ = ["PLUGINS", "PolicyGradient"]


@dataclass(frozen=True)
class PolicyGradient(Strategy):
    """Policy gradients with shared weights (Pham et al., "ENAS", ICML 2018, section 2.2).

    A network is drawn from the distribution, and its loss on held-out images is the negative
    reward; this is also ProxylessNAS's second method (Cai, Zhu and Han, ICLR 2019, section 3.3.1).
    It learns every choice of every space, not only those among operators.
    """

    def relaxed(self, space: SearchSpace) -> RelaxedSpace | None:
        """Return None: networks are drawn one by one."""
        return None

    @torch.no_grad()
    def update(
        self, work: StrategyStep, batch: Batch, moment: StepContext, direction: int
    ) -> Update:
        """See `Strategy.update`."""
        network = work.distribution.sample(direction, moment.rng)
        loss = work.loss(network, batch, moment)
        return Update(loss, network.as_dict())


PLUGINS = (
    StrategyPlugin(
        "search strategy",
        "reinforce",
        PolicyGradient,
        "Policy gradients over all choices with shared weights (ENAS)",
    ),
)
