"""What other devices teach about one that nobody has seen.

Shapes: N networks, K known devices, P parts of the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hwnas.predictors.blocks import Blocks, Scale, rows_of
from hwnas.predictors.gaussian_process import Mixture, Numbers, Parts, Prior, likeliest

__all__ = ["Experience", "Networks", "Source"]

_MOST_ROWS = 1000  # of a known device, to learn it from
_ROWS_FOR_WEIGHTS = 300  # of these, to find the weights of the kernel's parts with
_ROWS_FOR_PRIOR = 150
_PRIOR_STD = 1.0


@dataclass(frozen=True)
class Source:
    """A known device.

    Attributes:
        name: Of the device.
        blocks: Features of the networks that were measured on it.
        logs: Logarithms of their costs, of shape (n,).
    """

    name: str
    blocks: Blocks
    logs: Numbers

    def __len__(self) -> int:
        return len(self.logs)

    @cached_property
    def standardised(self) -> Numbers:
        """The logarithms with mean 0 and standard deviation 1."""
        values: Numbers = (self.logs - self.logs.mean()) / max(float(self.logs.std()), 1e-9)
        return values

    def first(self, count: int) -> Source:
        """At most so many of the networks, spread over all."""
        if len(self) <= count:
            return self
        rows = np.linspace(0, len(self) - 1, count).astype(np.int64)
        return Source(self.name, rows_of(self.blocks, rows), self.logs[rows])


@dataclass(frozen=True)
class Networks:
    """Networks as the known devices see them.

    Attributes:
        own: What is known of the networks alone.
        predicted: What each known device is expected to take, of shape (N, K), as standardised
            logarithms.
    """

    own: Parts
    predicted: Numbers

    def rows(self, index: Sequence[int] | Numbers) -> Networks:
        """Some of the networks."""
        chosen = np.asarray(index, dtype=np.int64)
        return Networks(self.own.rows(chosen), self.predicted[chosen])


@dataclass(frozen=True)
class Experience:
    """Known devices, and what follows for a new one.

    Attributes:
        sources: The known devices.
        reference: Features of the networks over which everything is scaled.
    """

    sources: tuple[Source, ...]
    reference: Blocks

    @cached_property
    def _scales(self) -> dict[str, Scale]:
        return {name: Scale.over(block) for name, block in self.reference.items()}

    def _own(self, blocks: Blocks) -> Parts:
        scaled = {name: self._scales[name](block) for name, block in blocks.items()}
        near = {f"{name}_near": 2.0 * block for name, block in scaled.items() if name != "counts"}
        return Parts(scaled, near)

    @cached_property
    def _models(self) -> tuple[Mixture, ...]:
        """Each known device learnt from its own networks."""
        return tuple(self._learn(source.first(_MOST_ROWS)) for source in self.sources)

    def _learn(self, source: Source) -> Mixture:
        few = source.first(_ROWS_FOR_WEIGHTS)
        parts = self._own(few.blocks)
        theta = likeliest(parts, few.standardised, Prior.vague(len(parts.names)))
        return Mixture(self._own(source.blocks), source.standardised, 1.0, theta[None])

    def see(self, blocks: Blocks) -> Networks:
        """Networks with these features.

        A network that was measured on a known device is predicted like any other, so that all
        rows are equally smooth.
        """
        own = self._own(blocks)
        if not self.sources:
            return Networks(own, np.zeros((len(own), 0)))
        return Networks(own, np.column_stack([model.predict(own)[0] for model in self._models]))

    @cached_property
    def _reference(self) -> Networks:
        return self.see(self.reference)

    def parts(self, networks: Networks, leave_out: int | None = None) -> Parts:
        """What the kernel reads of networks.

        Args:
            networks: From `see`.
            leave_out: Index of a known device that shall not take part.
        """
        devices = [k for k in range(len(self.sources)) if k != leave_out]
        if not devices:
            return networks.own
        scales = [Scale.over(b, whiten=False) for b in _split(self._reference, devices)]
        mean, differences = (
            scale(block) for scale, block in zip(scales, _split(networks, devices), strict=True)
        )
        transferred = {"mean": mean}
        if len(devices) > 1:
            transferred["differences"] = differences
        near = {"transfer_near": np.hstack([*transferred.values()])}
        own = networks.own
        return Parts({**transferred, **own.linear}, {**near, **own.radial})

    @cached_property
    def prior(self) -> Prior:
        """The weights of the parts: what each known device needed to be learnt from the others."""
        if len(self.sources) < 3:  # with one left out, at least two have to be left
            return Prior.vague(len(self.parts(self._reference.rows([0])).names))
        found = []
        for k, source in enumerate(self.sources):
            few = source.first(_ROWS_FOR_PRIOR)
            parts = self.parts(self.see(few.blocks), leave_out=k)
            found.append(likeliest(parts, few.standardised, Prior.vague(len(parts.names))))
        return Prior.around(np.array(found), _PRIOR_STD)


def _split(networks: Networks, devices: Sequence[int]) -> tuple[Numbers, Numbers]:
    """The mean over some devices (N, 1) and what each differs from it."""
    predicted = networks.predicted[:, devices]
    mean = predicted.mean(1, keepdims=True)
    return mean, predicted - mean
