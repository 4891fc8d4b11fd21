"""Transfer prior: the prior over an unknown device's costs, learnt from known devices.

Shapes: N networks, K known devices, P parts of the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hwnas.predictors.features.blocks import Blocks, BlockScaling, rows_of
from hwnas.predictors.models.gaussian_process import (
    Mixture,
    Numbers,
    Parts,
    Prior,
    likeliest,
    means,
)

__all__ = [
    "ConformalScale",
    "DeviceDataset",
    "MetaLearnedHyperparameters",
    "Networks",
    "TransferPrior",
    "scale_of",
]

_MOST_ROWS = 1000  # networks from which a known device is learnt
_ROWS_FOR_WEIGHTS = 300  # of these, those from which the weights of the kernel's parts are learnt
_ROWS_FOR_PRIOR = 150
_PRIOR_STD = 1.0
_MOST_SAMPLES = 2  # factor on the largest number of samples tried, up to which its scale applies


@dataclass(frozen=True)
class DeviceDataset:
    """Known device, with the costs of networks on it.

    Attributes:
        name: Name of the device.
        blocks: Features of the networks that were measured on the device.
        logs: Logarithms of the costs of these networks, of shape (n,).
        family: Family of the device. Devices of one family are nearly alike, so they do not help to
            judge transfer to a new device, which belongs to none of the known families. If empty,
            the device is a family of its own.
        measurable: Whether each network would be measured on a new device, of shape (n,); all if
            None.
    """

    name: str
    blocks: Blocks
    logs: Numbers
    family: str = ""
    measurable: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.logs)

    @cached_property
    def standardised(self) -> Numbers:
        """Logarithms of the costs with mean 0 and standard deviation 1."""
        values: Numbers = (self.logs - self.logs.mean()) / max(float(self.logs.std()), 1e-9)
        return values

    def first(self, count: int) -> DeviceDataset:
        """Return the device with at most `count` of its networks, spread over all."""
        if len(self) <= count:
            return self
        rows = np.linspace(0, len(self) - 1, count).astype(np.int64)
        measurable = None if self.measurable is None else self.measurable[rows]
        blocks, logs = rows_of(self.blocks, rows), self.logs[rows]
        return replace(self, blocks=blocks, logs=logs, measurable=measurable)


@dataclass(frozen=True)
class ConformalScale:
    """Scale of the standard deviations of a process: a conformal calibration on known devices.

    Scales that were stored by earlier versions have a factor and an exponent only.

    Attributes:
        factor: Scale of a process whose surprise and doubt are 1.
        exponent: Power of the process's surprise, 0 to 1.
        doubt_exponent: Power of the process's doubt, -1 to 1.
        doubts: Least and largest doubt on known devices; the doubt of a process is clipped to
            these.
    """

    factor: float = 1.0
    exponent: float = 0.0
    doubt_exponent: float = 0.0
    doubts: tuple[float, float] = (1.0, 1.0)

    def of(self, process: Mixture) -> float:
        """Return the scale of one process."""
        doubt = min(max(process.doubt, self.doubts[0]), self.doubts[1])
        scale = self.factor * process.surprise**self.exponent * doubt**self.doubt_exponent
        return float(scale)


def scale_of(widening: ConformalScale | None, process: Mixture) -> float:
    """Return the scale learnt from known devices, or else that of the process's own errors."""
    return process.own_scale if widening is None else widening.of(process)


@dataclass(frozen=True)
class MetaLearnedHyperparameters:
    """Meta-learned hyperparameters of known devices; slow to learn, fast to use.

    Attributes:
        thetas: Hyperparameters of each known device, of shape (K, P + 1).
        prior: Prior over the hyperparameters of a new device.
        widenings: Scales of a new device's process, by the number of its measurements; may be
            empty.
    """

    thetas: Numbers
    prior: Prior
    widenings: Mapping[int, ConformalScale] = field(default_factory=dict)

    def widening(self, samples: int) -> ConformalScale | None:
        """Return the scale that was learnt for the nearest number of measurements.

        The result is None if no scale was learnt, or if ``samples`` is more than twice the largest
        number for which one was learnt; the scale then follows from the process's own errors.
        """
        if not self.widenings or samples > _MOST_SAMPLES * max(self.widenings):
            return None
        return self.widenings[min(self.widenings, key=lambda n: abs(math.log(n / samples)))]

    def scale(self, process: Mixture) -> float:
        """Return the factor on the deviations of a new device's process."""
        return scale_of(self.widening(len(process.observed)), process)


@dataclass(frozen=True)
class Networks:
    """Features of networks, and their predicted costs on the known devices.

    Attributes:
        own: Features of the networks alone.
        predicted: Predicted costs on each known device, as standardised logarithms, of shape
            (N, K).
    """

    own: Parts
    predicted: Numbers

    def rows(self, index: Sequence[int] | Numbers) -> Networks:
        """Return some of the networks."""
        chosen = np.asarray(index, dtype=np.int64)
        return Networks(self.own.rows(chosen), self.predicted[chosen])


@dataclass(frozen=True)
class TransferPrior:
    """Known devices, and the prior that they give for a new one.

    Attributes:
        sources: Known devices.
        reference: Features of the networks over which everything is scaled.
        known_hyperparameters: Hyperparameters that were learnt before; learnt anew if None.
    """

    sources: tuple[DeviceDataset, ...]
    reference: Blocks
    known_hyperparameters: MetaLearnedHyperparameters | None = None

    @cached_property
    def _scales(self) -> dict[str, BlockScaling]:
        return {name: BlockScaling.over(block) for name, block in self.reference.items()}

    def _own(self, blocks: Blocks) -> Parts:
        scaled = {name: self._scales[name](block) for name, block in blocks.items()}
        near = {f"{name}_near": 2.0 * block for name, block in scaled.items() if name != "counts"}
        return Parts(scaled, near)

    def only(self, device: str) -> TransferPrior:
        """Return the prior that one of the devices gives for itself, without the others."""
        place = [source.name for source in self.sources].index(device)
        theta = self.hyperparameters.thetas[place]
        none = np.zeros((0, len(theta)))
        return TransferPrior(
            (), self.reference, MetaLearnedHyperparameters(none, Prior(theta, np.zeros(len(theta))))
        )

    def but(self, devices: Sequence[str]) -> TransferPrior:
        """Return the prior without some devices; the prior over hyperparameters stays the same."""
        kept = [i for i, source in enumerate(self.sources) if source.name not in devices]
        hyperparameters = replace(self.hyperparameters, thetas=self.hyperparameters.thetas[kept])
        return TransferPrior(tuple(self.sources[i] for i in kept), self.reference, hyperparameters)

    def logs(self, blocks: Blocks) -> Numbers:
        """Return the predicted log costs of networks on each known device, of shape (N, K)."""
        levels = np.array([(source.logs.std(), source.logs.mean()) for source in self.sources])
        found: Numbers = self.see(blocks).predicted * levels[:, 0] + levels[:, 1]
        return found

    @cached_property
    def hyperparameters(self) -> MetaLearnedHyperparameters:
        """Hyperparameters that were learnt from the known devices."""
        return self.known_hyperparameters or MetaLearnedHyperparameters(self._thetas, self._prior())

    @cached_property
    def _thetas(self) -> Numbers:
        """Hyperparameters of each known device, learnt from its own networks."""
        if self.known_hyperparameters is not None:
            return self.known_hyperparameters.thetas
        found = []
        for source in self.sources:
            few = source.first(_ROWS_FOR_WEIGHTS)
            parts = self._own(few.blocks)
            found.append(likeliest(parts, few.standardised, Prior.vague(len(parts.names))))
        return np.array(found)

    @cached_property
    def _models(self) -> tuple[Mixture, ...]:
        """Processes of the known devices; those measured on the same networks share their parts."""
        parts: dict[int, Parts] = {}
        models = []
        for source, theta in zip(self.sources, self._thetas, strict=True):
            some = source.first(_MOST_ROWS)
            if id(source.blocks) not in parts:
                parts[id(source.blocks)] = self._own(some.blocks)
            shared = parts[id(source.blocks)]
            models.append(Mixture(shared, some.standardised, 1.0, theta[None]))
        return tuple(models)

    def see_first(self, source: DeviceDataset, count: int) -> tuple[DeviceDataset, Networks]:
        """Return a known device with at most `count` networks, and these networks from `see`.

        Devices that were measured on the same networks share the result.
        """
        some, place = source.first(count), (id(source.blocks), count)
        if place not in self._seen:
            self._seen[place] = self.see(some.blocks)
        return some, self._seen[place]

    @cached_property
    def _seen(self) -> dict[tuple[int, int], Networks]:
        return {}

    def see(self, blocks: Blocks) -> Networks:
        """Return networks with these features, and their predicted costs on the known devices.

        A network that was measured on a known device is predicted like any other, so that all
        rows are equally smooth.
        """
        own = self._own(blocks)
        if not self.sources:
            return Networks(own, np.zeros((len(own), 0)))
        return Networks(own, means(self._models, own))

    @cached_property
    def _reference(self) -> Networks:
        return self.see(self.reference)

    def others(self, device: int) -> list[int]:
        """Return the indices of the known devices that are not of this one's family."""
        family = self.sources[device].family or device
        return [k for k, source in enumerate(self.sources) if (source.family or k) != family]

    def parts(self, networks: Networks, only: Sequence[int] | None = None) -> Parts:
        """Return networks as inputs of the kernel.

        Args:
            networks: Networks from `see`.
            only: Indices of the known devices that take part; all if None.
        """
        devices = range(len(self.sources)) if only is None else only
        if not devices:
            return networks.own
        scales = [BlockScaling.over(b, whiten=False) for b in _split(self._reference, devices)]
        mean, differences = (
            scale(block) for scale, block in zip(scales, _split(networks, devices), strict=True)
        )
        transferred = {"mean": mean}
        if len(devices) > 1:
            transferred["differences"] = differences
        near = {"transfer_near": np.hstack([*transferred.values()])}
        own = networks.own
        return Parts({**transferred, **own.linear}, {**near, **own.radial})

    @property
    def prior(self) -> Prior:
        """Prior over the weights of the parts, from learning each known device from the others."""
        return self.hyperparameters.prior

    def _prior(self) -> Prior:
        found = []
        for k, source in enumerate(self.sources):
            others = self.others(k)
            if len(others) < 2:  # the differences between them are a part of the kernel
                continue
            few, networks = self.see_first(source, _ROWS_FOR_PRIOR)
            parts = self.parts(networks, others)
            found.append(likeliest(parts, few.standardised, Prior.vague(len(parts.names))))
        if not found:
            return Prior.vague(len(self.parts(self._reference.rows([0])).names))
        return Prior.around(np.array(found), _PRIOR_STD)


def _split(networks: Networks, devices: Sequence[int]) -> tuple[Numbers, Numbers]:
    """Return the mean over some devices, (N, 1), and the difference of each device from it."""
    predicted = networks.predicted[:, devices]
    mean = predicted.mean(1, keepdims=True)
    return mean, predicted - mean
