"""Distribution over the networks of a space, learned by gradients.

Shapes: K directions, C choices of at most O options.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["ArchitectureDistribution", "Learned", "Table"]

_FIRST_WEIGHT = 1e-3
_BETAS = 0.5, 0.999  # of Adam, as in DARTS (Liu et al., ICLR 2019) and all of its descendants

Table = Mapping[str, Mapping[str, float]]
"""Probability of each option, by the name of the choice."""


class Learned(nn.Module):
    """Numbers that Adam (Kingma and Ba, ICLR 2015) updates, apart from the weights of networks.

    They and the state of Adam are buffers, so that a checkpoint of the training contains them and
    the optimiser of the weights leaves them alone.

    Args:
        shape: Shape of the numbers, which start at 0; the first dimension is that of the K
            directions, each with an update count of its own.
    """

    value: Tensor
    moments: Tensor
    squares: Tensor
    updates: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        for name in ("value", "moments", "squares"):
            self.register_buffer(name, torch.zeros(shape))
        self.register_buffer("updates", torch.zeros(shape[0]))

    @torch.no_grad()
    def descend(self, direction: int, gradient: Tensor, learning_rate: float) -> None:
        """Update the numbers of a direction against their gradient, by a step of Adam."""
        adam(
            [self.value[direction]],
            [gradient],
            [self.moments[direction]],
            [self.squares[direction]],
            [],
            [self.updates[direction]],
            foreach=False,
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )


class ArchitectureDistribution(nn.Module):
    """Independent categorical distributions of all choices, one set for each direction.

    A direction is a limit on the expected cost, or a weight of the cost against the loss.

    Attributes:
        space: Space of the networks.
        logits: Logits of the options, (K, C, O).
        edges: Logits of the edges of a cell among those that end at the same node, (K, C).
        baselines: Moving averages of rewards, (K,); NaN before the first reward.
        cost_weights: Learned weights of the cost against the loss, (K,).

    Args:
        space: Space of the networks.
        directions: Number of directions K.
    """

    exists: Tensor
    baselines: Tensor
    cost_weights: Tensor

    def __init__(self, space: SearchSpace, directions: int) -> None:
        super().__init__()
        self.space = space
        sizes = torch.tensor([len(choice.options) for choice in space.choices])
        self.register_buffer("exists", torch.arange(int(sizes.max())) < sizes[:, None])
        self.logits = Learned(directions, *self.exists.shape)
        self.edges = Learned(directions, len(sizes))
        self.register_buffer("baselines", torch.full((directions,), torch.nan))
        self.register_buffer("cost_weights", torch.full((directions,), _FIRST_WEIGHT))

    @property
    def probabilities(self) -> Tensor:
        """Probabilities of the options, (K, C, O); 0 where there is no option."""
        return self.of_logits(self.logits.value)

    def of_logits(self, logits: Tensor) -> Tensor:
        """Return the probabilities of logits (..., C, O)."""
        return logits.masked_fill(~self.exists, -torch.inf).softmax(-1)

    def sample(self, direction: int, rng: random.Random) -> Architecture:
        """Return a network drawn from the distribution of a direction."""
        rows = self.probabilities[direction].tolist()
        return self._architecture([rng.choices(range(len(row)), row)[0] for row in rows])

    def most_probable(self, direction: int) -> Architecture:
        """Return the network of the most probable options."""
        return self._architecture(self.probabilities[direction].argmax(-1).tolist())

    def indices(self, architecture: Architecture) -> Tensor:
        """Return the index of each option of a network, (C,); -1 for choices without effect."""
        values = architecture.as_dict()
        return torch.tensor(
            [c.index(values[c.name]) if c.name in values else -1 for c in self.space.choices],
            device=self.exists.device,
        )

    def descend(
        self,
        direction: int,
        gradient: Tensor,
        learning_rate: float,
        touched: Tensor | None = None,
    ) -> None:
        """Update the logits of a direction against a gradient (C, O).

        Args:
            direction: Index of the direction.
            gradient: Gradient of the loss and the cost.
            learning_rate: Learning rate of Adam.
            touched: Options that may change, (C, O) bool; the others keep their probabilities,
                which ProxylessNAS does with the operators that it did not sample. All may if None.
        """
        before = self.logits.value[direction].clone()
        self.logits.descend(direction, gradient.masked_fill(~self.exists, 0.0), learning_rate)
        if touched is None:
            return
        after = torch.where(touched, self.logits.value[direction], before)
        # The sum of the exponentials of the touched logits stays as it was.
        hidden = ~touched
        was = before.masked_fill(hidden, -torch.inf).logsumexp(-1, keepdim=True)
        now = after.masked_fill(hidden, -torch.inf).logsumexp(-1, keepdim=True)
        shift = torch.where(touched.any(-1, keepdim=True), was - now, torch.zeros_like(was))
        self.logits.value[direction] = torch.where(touched, after + shift, after)

    def tables(self) -> list[Table]:
        """Return the probability of each option by choice, one table for each direction."""
        return [
            {
                choice.name: {
                    str(option): p for option, p in zip(choice.options, row, strict=False)
                }
                for choice, row in zip(self.space.choices, rows, strict=True)
            }
            for rows in self.probabilities.tolist()
        ]

    def _architecture(self, indices: Sequence[int]) -> Architecture:
        pairs = zip(self.space.choices, indices, strict=True)
        return self.space.architecture({c.name: c.options[i] for c, i in pairs})
