"""Strategy of GDAS: one operator a choice, drawn with a differentiable sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search.strategies.strategy import Strategy, StrategyPlugin, StrategyStep, Update
from hwnas.search.training.batch import Batch
from hwnas.search.training.steps import StepContext

__all__ = ["GDAS", "PLUGINS"]


@dataclass(frozen=True)
class GDAS(Strategy):
    """Gumbel-softmax with hard samples (Dong and Yang, "GDAS", CVPR 2019, section 3.2).

    The forward pass runs the operator with the largest perturbed logit. Its output is multiplied by
    1, whose gradient is that of the relaxed sample (equation 7).

    Attributes:
        temperature: Temperature at the start and at the end, between which it falls linearly.
    """

    temperature: tuple[float, float] = (10.0, 0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "temperature", tuple(self.temperature))
        if len(self.temperature) != 2 or any(not t > 0 for t in self.temperature):
            raise ConfigError(
                f"temperature is {list(self.temperature)}; expected those of the start and the end"
            )

    def update(
        self, work: StrategyStep, batch: Batch, moment: StepContext, direction: int
    ) -> Update:
        """See `Strategy.update`."""
        distribution = work.distribution
        logits = distribution.logits.value[direction].detach().clone().requires_grad_()
        start, end = self.temperature
        temperature = start + (end - start) * moment.share
        uniform = torch.rand_like(logits).clamp(1e-9, 1 - 1e-7)
        noise = -(-uniform.log()).log()
        log_p = distribution.of_logits(logits).clamp_min(1e-12).log()
        noisy = ((log_p + noise) / temperature).masked_fill(~distribution.exists, -torch.inf)
        soft = noisy.softmax(-1)
        chosen = soft.argmax(-1).tolist()
        factor = 1 + soft - soft.detach()
        choices = work.supernet.space.choices

        def gate_of(choice: str) -> _HardGate:
            index = work.index_of[choice]
            option = chosen[index]
            return _HardGate(str(choices[index].options[option]), factor[index, option])

        loss, drawn = work.relaxed_loss(batch, moment, direction, gate_of)
        (gradient,) = torch.autograd.grad(loss, logits)
        return Update(loss.detach(), drawn, gradient)


@dataclass(frozen=True)
class _HardGate:
    """Gate that runs one operator and multiplies its output by a factor of 1."""

    run: str
    factor: Tensor

    def __call__(self, x: Tensor, operators: Mapping[str, nn.Module]) -> Tensor:
        y: Tensor = operators[self.run](x)
        return self.factor * y


PLUGINS = (
    StrategyPlugin(
        "search strategy", "gdas", GDAS, "One operator a choice by Gumbel-softmax (GDAS)"
    ),
)
