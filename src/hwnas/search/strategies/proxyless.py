"""Strategy of ProxylessNAS: binary gates over two sampled operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.search.strategies.strategy import Strategy, StrategyPlugin, StrategyStep, Update
from hwnas.search.training.batch import Batch
from hwnas.search.training.steps import StepContext
from hwnas.search_spaces.supernet.relaxed import operator_choices

__all__ = ["PLUGINS", "Proxyless"]


@dataclass(frozen=True)
class Proxyless(Strategy):
    """Binary gates (Cai, Zhu and Han, "ProxylessNAS", ICLR 2019, sections 3.2 and 3.3.1).

    For each choice two operators are drawn without replacement, and one of them is run with a gate
    of 1, the other with a gate of 0, whose gradient needs its output alone. The gradient of the
    two probabilities follows from those of the gates (equation 4). So the memory of a step does not
    grow with the number of operators. The probabilities of the other operators stay as they are.
    """

    def update(
        self, work: StrategyStep, batch: Batch, moment: StepContext, direction: int
    ) -> Update:
        """See `Strategy.update`."""
        distribution = work.distribution
        choices = operator_choices(work.supernet.space)
        pairs, shares, gates = {}, {}, {}
        rows = distribution.probabilities[direction].tolist()
        for index in map(work.index_of.__getitem__, choices):
            first, second = _two(rows[index], moment)
            share = rows[index][first] / (rows[index][first] + rows[index][second])
            if moment.rng.random() >= share:
                first, second, share = second, first, 1 - share
            pairs[index], shares[index] = (first, second), share
            gates[index] = torch.tensor([1.0, 0.0], device=batch.images.device, requires_grad=True)

        def gate_of(choice: str) -> _BinaryGate:
            index, options = work.index_of[choice], choices[choice].options
            first, second = (str(options[place]) for place in pairs[index])
            return _BinaryGate(first, second, gates[index])

        loss, drawn = work.relaxed_loss(batch, moment, direction, gate_of)
        found = torch.autograd.grad(loss, list(gates.values()), allow_unused=True)
        gradient = torch.zeros_like(distribution.logits.value[direction])
        touched = torch.zeros_like(distribution.exists)
        for index, by_gate in zip(gates, found, strict=True):
            if by_gate is None:  # the block is skipped at the depth that was drawn
                continue
            q = torch.tensor([shares[index], 1 - shares[index]], device=by_gate.device)
            by_logit = q * (by_gate - (by_gate * q).sum())
            place = torch.tensor(pairs[index], device=by_gate.device)
            gradient[index, place] = by_logit.to(gradient.dtype)
            touched[index, place] = True
        return Update(loss.detach(), drawn, gradient, touched)


@dataclass(frozen=True)
class _BinaryGate:
    """Gate that runs one operator, and another only for the gradient of its gate."""

    run: str
    other: str
    gates: Tensor

    def __call__(self, x: Tensor, operators: Mapping[str, nn.Module]) -> Tensor:
        with torch.no_grad():
            other = operators[self.other](x)
        run: Tensor = operators[self.run](x)
        mixed: Tensor = self.gates[0] * run + self.gates[1] * other
        return mixed


def _two(row: list[float], moment: StepContext) -> tuple[int, int]:
    """Draw two different options, without replacement."""
    (first,) = moment.rng.choices(range(len(row)), row)
    others = [0.0 if i == first else p for i, p in enumerate(row)]
    if not any(others):
        others = [float(i != first) for i in range(len(row))]
    (second,) = moment.rng.choices(range(len(row)), others)
    return first, second


PLUGINS = (
    StrategyPlugin(
        "search strategy",
        "proxyless",
        Proxyless,
        "Binary gates over two sampled operators (ProxylessNAS)",
    ),
)
