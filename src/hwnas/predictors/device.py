"""Costs of any network on one device, from measurements of a few on it and what others teach."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from hwnas.deploy.device import Target
from hwnas.errors import ConfigError
from hwnas.predictors.blocks import Blocks, blocks_of_steps
from hwnas.predictors.estimate import Estimate, check_pairs
from hwnas.predictors.experience import Experience
from hwnas.predictors.gaussian_process import Mixture, Numbers, Parts, Prior
from hwnas.predictors.kernel_features import KERNELS, KernelFeatures, kernel_features
from hwnas.predictors.options import mean_cost_of_options
from hwnas.predictors.physical import FEATURES, amounts, quantities
from hwnas.predictors.shipped import shipped_experience, shipped_profiles
from hwnas.predictors.store import CostMetric, DeviceProfile, DeviceStore
from hwnas.search_spaces import SearchSpace, StepTable, Workload

__all__ = ["MINIMUM_MEASUREMENTS", "DevicePredictor"]

MINIMUM_MEASUREMENTS = 3
_LEAST_FOR_ERROR = 5
_MARGIN = 1.5  # beyond what is known, as a factor, that a prediction is trusted


@dataclass(frozen=True, eq=False)
class DevicePredictor:
    """A Gaussian process on the log cost of networks on one device.

    Attributes:
        device: Name of the target, or of a device of one's own.
        experience: What other devices teach.
        steps: What the networks that were measured on this device ask of hardware, at batch 1.
        costs: What they cost, n positive numbers.
        metric: What is predicted; the unit is in its name.
        hardware: Processor or accelerator, in words; that of where the device is now if empty.
    """

    device: str
    experience: Experience
    steps: StepTable = field(default_factory=lambda: StepTable.of(()))
    costs: tuple[float, ...] = ()
    metric: CostMetric = "latency_ms"
    hardware: str = ""

    def __post_init__(self) -> None:
        for cost in self.costs:
            if not (math.isfinite(cost) and cost > 0):
                raise ConfigError(f"a {self.metric} is {cost}; expected a positive number")

    @classmethod
    def of(cls, profile: DeviceProfile, experience: Experience | None = None) -> DevicePredictor:
        """The predictor that a profile gives.

        Args:
            profile: Of the device.
            experience: What other devices teach; that of the devices that hwnas ships if None.
        """
        known = shipped_experience() if experience is None else experience
        costs = tuple(profile.costs.tolist())
        return cls(profile.device, known, profile.steps, costs, profile.metric, profile.hardware)

    @classmethod
    def load(
        cls, store: DeviceStore | str | Path, device: str, metric: CostMetric = "latency_ms"
    ) -> DevicePredictor:
        """The predictor of a device that was calibrated, or that hwnas ships.

        Args:
            store: Where profiles are kept, or its folder; one in it goes before one that ships.
            device: Name of a target, or of a device of one's own.
            metric: What to predict.

        Raises:
            ConfigError: The device is not known.
            ArtifactError: Its profile is damaged, or was written by a newer version of hwnas.
        """
        store = store if isinstance(store, DeviceStore) else DeviceStore(Path(store))
        if store.has(device, metric) or device not in shipped_profiles(metric):
            return cls.of_known(store.load(device, metric), shipped=False)
        return cls.of_known(shipped_profiles(metric)[device], shipped=True)

    @classmethod
    def of_known(cls, profile: DeviceProfile, shipped: bool) -> DevicePredictor:
        """The predictor of a device of the store, or of one that hwnas ships.

        Of one that ships so many networks were measured that the others have nothing to add.
        """
        return cls.of(profile, shipped_experience().only(profile.device) if shipped else None)

    def adapt(self, workloads: Sequence[Workload], costs: Sequence[float]) -> DevicePredictor:
        """A new predictor that has learnt these measurements as well.

        Args:
            workloads: Networks, at batch 1.
            costs: Of each, in the metric's unit, at the device's batch.
        """
        if len(workloads) != len(costs):
            raise ConfigError(
                f"got {len(workloads)} workloads and {len(costs)} costs; expected one for each"
            )
        return self.adapt_steps(StepTable.of_workloads(workloads), costs)

    def adapt_steps(self, steps: StepTable, costs: Sequence[float] | Numbers) -> DevicePredictor:
        """The same for networks that are given as counts of steps."""
        together = StepTable.stacked([self.steps, steps])
        return replace(self, steps=together, costs=(*self.costs, *map(float, costs)))

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        """Predicted costs.

        Args:
            workloads: Networks, at batch 1.
            targets: For each workload, the target of this predictor.

        Raises:
            ConfigError: A target is another one, or fewer than three networks were measured.
        """
        check_pairs(workloads, targets, self.device)
        return self.predict(workloads)

    def predict(self, workloads: Sequence[Workload]) -> list[Estimate]:
        """Predicted costs on this device of networks at batch 1."""
        return self.predict_steps(StepTable.of_workloads(workloads)) if workloads else []

    def predict_steps(self, steps: StepTable) -> list[Estimate]:
        """The same for networks that are given as counts of steps."""
        return self.estimates(self.blocks(steps))

    def blocks(self, steps: StepTable, known: Blocks | None = None) -> Blocks:
        """Features of networks, as this predictor looks at them.

        Where our own kernels run them, that is also what these will take of the card.

        Args:
            steps: Of the networks.
            known: Their features as from `blocks_of_steps`, if these were worked out already.
        """
        blocks = blocks_of_steps(steps) if known is None else known
        own = self._kernels
        return blocks if own is None else {**blocks, KERNELS: own.block(steps)}

    def choice_costs(self, space: SearchSpace, target: Target) -> dict[str, dict[str, float]]:
        """Expected cost of each option, all else being equal."""
        return mean_cost_of_options(self, space, target, random.Random(0))

    def held_out(self, folds: int = 20) -> list[Estimate]:
        """The prediction of each measured network by a predictor that has not seen it.

        Args:
            folds: So many predictors are fitted, each on all but some of the networks; where there
                are no more networks than folds, each is left out by itself.
        """
        order = np.arange(len(self.costs))
        estimates: list[Estimate | None] = [None] * len(order)
        for fold in range(min(folds, len(order))):
            left_out = order[fold::folds]
            kept = np.delete(order, left_out)
            costs = tuple(self.costs[i] for i in kept)
            others = replace(self, steps=self.steps.rows(kept), costs=costs)
            for i, estimate in zip(
                left_out, others.predict_steps(self.steps.rows(left_out)), strict=True
            ):
                estimates[i] = estimate
        return [each for each in estimates if each is not None]

    @property
    def held_out_error(self) -> float | None:
        """Median error of `held_out` in five folds, as a fraction; None below five measurements."""
        if len(self.costs) < _LEAST_FOR_ERROR:
            return None
        predicted = np.array([estimate.mean for estimate in self.held_out(5)])
        return float(np.median(np.abs(predicted / self.costs - 1)))

    @property
    def variances(self) -> Numbers:
        """Of the parts of the kernel and, last, of the noise, as far as they are known."""
        known = len(self.costs) >= MINIMUM_MEASUREMENTS
        return np.exp(self._process.theta if known else self._prior.mean)

    def unfamiliar(self, steps: StepTable) -> list[str]:
        """In which quantities one network lies outside of all that is known, in words."""
        known = np.vstack([quantities(self.steps), amounts(self.experience.reference["physical"])])
        least, most = known.min(0), known.max(0)
        found = quantities(steps)[0]
        outside = (found < least / _MARGIN) | (found > most * _MARGIN)
        return [
            f"{name} is {found[i]:,.0f}; {least[i]:,.0f} to {most[i]:,.0f} are known"
            for i, name in enumerate(FEATURES)
            if outside[i] and not name.endswith("_ms")
        ]

    @property
    def note(self) -> str:
        """What to know of how networks are described; empty where there is nothing."""
        return "" if self._kernels is None else self._kernels.note

    def logs(self, blocks: Blocks) -> tuple[Numbers, Numbers]:
        """Mean and standard deviation of the log cost, each of shape (N,).

        Args:
            blocks: Features of N networks, from `blocks`.

        Raises:
            ConfigError: Fewer than three networks were measured.
        """
        mean, std = self._process.predict(self.parts(blocks))
        return mean, self.experience.lessons.scale(self._process) * std

    def parts(self, blocks: Blocks) -> Parts:
        """What the kernel reads of networks with these features."""
        shared = {name: block for name, block in blocks.items() if name != KERNELS}
        parts = self.experience.parts(self.experience.see(shared))
        own = self._kernels
        return parts if own is None else parts.beside(own.parts(blocks[KERNELS]))

    @cached_property
    def _kernels(self) -> KernelFeatures | None:
        return kernel_features(self.device, self.hardware) if self.metric == "latency_ms" else None

    @property
    def _prior(self) -> Prior:
        """That of the experience, which knows nothing of how much matters what kernels take."""
        prior = self.experience.prior
        if self._kernels is None:
            return prior
        linear = [*self.parts(self.blocks(StepTable.of([{}]))).linear]
        return prior.with_vague([linear.index(KERNELS), len(prior.mean) - 1])

    @cached_property
    def _process(self) -> Mixture:
        if len(self.costs) < MINIMUM_MEASUREMENTS:
            raise ConfigError(
                f"{len(self.costs)} networks were measured on {self.device}; a predictor needs at "
                f"least {MINIMUM_MEASUREMENTS}"
            )
        logs = np.log(self.costs)
        return Mixture.fitted(self.parts(self.blocks(self.steps)), logs, self._prior)

    def estimates(self, blocks: Blocks) -> list[Estimate]:
        """Predicted costs of networks with these features."""
        return [
            Estimate.log_normal(self.metric, float(mean), float(std), self.device)
            for mean, std in zip(*self.logs(blocks), strict=True)
        ]
