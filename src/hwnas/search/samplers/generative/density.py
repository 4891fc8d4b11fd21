"""Distribution of networks given their costs, as a masked autoregressive network.

Shapes: N networks as codes of P positions with at most O options each; K conditions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces.tabular import Codes

__all__ = ["ConditionalDensity"]

_HIDDEN = 128
_BATCH = 128
_RATE = 3e-3


class ConditionalDensity(nn.Module):
    """Distribution of codes given conditions, one position after the other.

    The network is MADE (Germain et al., "MADE: Masked Autoencoder for Distribution Estimation",
    ICML 2015) with one hidden layer, whose masks let an option depend on those of earlier positions
    only; conditions reach every unit.

    Args:
        sizes: Number of options of each position, (P,).
        conditions: K.
        seed: Seed of the initial weights.
    """

    _into: Tensor
    _out_of: Tensor
    _past: Tensor
    _absent: Tensor

    def __init__(self, sizes: npt.NDArray[np.int64], conditions: int, seed: int) -> None:
        super().__init__()
        self.sizes, self.conditions = sizes, conditions
        positions, most = len(sizes), int(sizes.max())
        place = torch.arange(positions).repeat_interleave(most)  # position of each in- and output
        degree = torch.arange(_HIDDEN) % max(positions - 1, 1)
        self.register_buffer("_into", (degree[:, None] >= place).float())
        self.register_buffer("_out_of", (place[:, None] > degree).float())
        self.register_buffer("_past", (place[:, None] > place).float())
        allowed = torch.arange(most) < torch.from_numpy(sizes)[:, None]
        self.register_buffer("_absent", ~allowed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.hidden = nn.Linear(positions * most, _HIDDEN)
            self.outputs = nn.Linear(_HIDDEN, positions * most)
            self.skip = nn.Parameter(torch.zeros(positions * most, positions * most))
        self.of_hidden = nn.Parameter(torch.zeros(conditions, _HIDDEN))
        self.of_outputs = nn.Parameter(torch.zeros(conditions, positions * most))

    def forward(self, codes: Tensor, conditions: Tensor) -> Tensor:
        """Return the log-probabilities of all options, (N, P, O), given those of earlier positions.

        Args:
            codes: Codes, (N, P), integers.
            conditions: (N, K).
        """
        one_hot = functional.one_hot(codes, self._absent.shape[1]).float().flatten(1)
        hidden = functional.linear(one_hot, self.hidden.weight * self._into, self.hidden.bias)
        hidden = (hidden + conditions @ self.of_hidden).relu()
        logits = functional.linear(hidden, self.outputs.weight * self._out_of, self.outputs.bias)
        logits = logits + functional.linear(one_hot, self.skip * self._past)
        logits = (logits + conditions @ self.of_outputs).view(-1, *self._absent.shape)
        found: Tensor = logits.masked_fill(self._absent, -torch.inf).log_softmax(2)
        return found

    def log_chances(self, codes: Codes, conditions: Numbers) -> Numbers:
        """Return the log-probability of each code given its conditions, (N,)."""
        with torch.no_grad():
            found = self._log_chances(torch.from_numpy(codes), _tensor(conditions))
        chances: Numbers = found.double().numpy()
        return chances

    def _log_chances(self, codes: Tensor, conditions: Tensor) -> Tensor:
        found: Tensor = self(codes, conditions).gather(2, codes[:, :, None]).sum((1, 2))
        return found

    def drawn(self, conditions: Numbers, rng: np.random.Generator) -> Codes:
        """Draw a code for each row of conditions, (N, P)."""
        given = _tensor(conditions)
        codes = torch.zeros(len(given), len(self.sizes), dtype=torch.int64)
        shape = len(given), *self._absent.shape
        noise = torch.from_numpy(rng.gumbel(size=shape)).float()
        with torch.no_grad():
            for position in range(len(self.sizes)):
                noisy = self(codes, given)[:, position] + noise[:, position]
                codes[:, position] = noisy.argmax(1)
        return codes.numpy()

    def fit(
        self,
        codes: Codes,
        conditions: Numbers,
        weights: Numbers,
        steps: int,
        rng: np.random.Generator,
        conditions_of: Callable[[Numbers], Numbers] = lambda conditions: conditions,
    ) -> None:
        """Maximise the weighted mean log-probability of codes given their conditions, by Adam.

        Args:
            codes: (N, P).
            conditions: (N, K).
            weights: How often each code is drawn for a step, relative to the others, (N,).
            steps: Number of steps, of 128 codes each.
            rng: Source of randomness.
            conditions_of: Function that changes the conditions of a batch, such as by noise.
        """
        optimiser = torch.optim.Adam(self.parameters(), _RATE)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
        shares = weights / weights.sum()
        for _ in range(steps):
            rows = rng.choice(len(codes), _BATCH, p=shares)
            given = _tensor(conditions_of(conditions[rows]))
            loss = -self._log_chances(torch.from_numpy(codes[rows]), given).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            falling.step()


def _tensor(values: Numbers) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))
