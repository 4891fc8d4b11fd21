"""Predictor of costs on one device, from measurements of a few networks and from other devices."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.predictors.devices.shipped import shipped_prior, shipped_profiles
from hwnas.predictors.devices.store import CostMetric, DeviceProfile, DeviceStore
from hwnas.predictors.estimate import Estimate, check_pairs
from hwnas.predictors.features.blocks import Blocks, blocks_of_steps
from hwnas.predictors.features.kernel_features import KERNELS, KernelFeatures, kernel_features
from hwnas.predictors.features.physical import FEATURES, amounts, quantities
from hwnas.predictors.models.gaussian_process import Mixture, Numbers, Parts, Prior
from hwnas.predictors.models.transfer_prior import TransferPrior
from hwnas.predictors.options import mean_cost_of_options
from hwnas.search_spaces import OperatorCountTable, SearchSpace, Workload

__all__ = ["MINIMUM_MEASUREMENTS", "DevicePredictor"]

MINIMUM_MEASUREMENTS = 3
_LEAST_FOR_ERROR = 5
_MARGIN = 1.5  # factor beyond the known range up to which a prediction is trusted


@dataclass(frozen=True, eq=False)
class DevicePredictor:
    """Gaussian process on the log cost of networks on one device.

    Attributes:
        device: Name of the target, or of a custom device.
        transfer_prior: Known devices, and the prior that they give.
        steps: Operator counts of the networks that were measured on this device, at batch 1.
        costs: Costs of these networks, n positive numbers.
        metric: Metric that is predicted; the unit is in its name.
        hardware: Processor or accelerator, in words; if empty, that of the device's machine now.
    """

    device: str
    transfer_prior: TransferPrior
    steps: OperatorCountTable = field(default_factory=lambda: OperatorCountTable.of(()))
    costs: tuple[float, ...] = ()
    metric: CostMetric = "latency_ms"
    hardware: str = ""

    def __post_init__(self) -> None:
        for cost in self.costs:
            if not (math.isfinite(cost) and cost > 0):
                raise ConfigError(f"a {self.metric} is {cost}; expected a positive number")

    @classmethod
    def of(
        cls, profile: DeviceProfile, transfer_prior: TransferPrior | None = None
    ) -> DevicePredictor:
        """Return the predictor that a profile gives.

        Args:
            profile: Profile of the device.
            transfer_prior: Known devices, and the prior that they give; those that ship if None.
        """
        known = shipped_prior() if transfer_prior is None else transfer_prior
        costs = tuple(profile.costs.tolist())
        return cls(profile.device, known, profile.steps, costs, profile.metric, profile.hardware)

    @classmethod
    def load(
        cls, store: DeviceStore | str | Path, device: str, metric: CostMetric = "latency_ms"
    ) -> DevicePredictor:
        """Return the predictor of a device that was calibrated, or that ships with hwnas.

        Args:
            store: Store of profiles, or its folder; its profiles precede those that ship.
            device: Name of a target, or of a custom device.
            metric: Metric to predict.

        Raises:
            ConfigError: The device is not known.
            ArtifactError: The profile is damaged, or was written by a newer version of hwnas.
        """
        store = store if isinstance(store, DeviceStore) else DeviceStore(Path(store))
        if store.has(device, metric) or device not in shipped_profiles(metric):
            return cls.of_known(store.load(device, metric), shipped=False)
        return cls.of_known(shipped_profiles(metric)[device], shipped=True)

    @classmethod
    def of_known(cls, profile: DeviceProfile, shipped: bool) -> DevicePredictor:
        """Return the predictor of a device of the store, or of one that ships with hwnas.

        A shipped device has so many measurements that its predictor does not use other devices.
        """
        return cls.of(profile, shipped_prior().only(profile.device) if shipped else None)

    def adapt(self, workloads: Sequence[Workload], costs: Sequence[float]) -> DevicePredictor:
        """Return a new predictor that has also learnt these measurements.

        Args:
            workloads: Networks, at batch 1.
            costs: Cost of each network, in the metric's unit, at the device's batch.
        """
        if len(workloads) != len(costs):
            raise ConfigError(
                f"got {len(workloads)} workloads and {len(costs)} costs; expected one for each"
            )
        return self.adapt_steps(OperatorCountTable.of_workloads(workloads), costs)

    def adapt_steps(
        self, steps: OperatorCountTable, costs: Sequence[float] | Numbers
    ) -> DevicePredictor:
        """Return a new predictor as `adapt` does, for networks given as operator counts."""
        together = OperatorCountTable.stacked([self.steps, steps])
        return replace(self, steps=together, costs=(*self.costs, *map(float, costs)))

    def cost(self, workloads: Sequence[Workload], targets: Sequence[Target]) -> list[Estimate]:
        """Predict costs.

        Args:
            workloads: Networks, at batch 1.
            targets: Target of this predictor, once for each workload.

        Raises:
            ConfigError: A target is another one, or fewer than three networks were measured.
        """
        check_pairs(workloads, targets, self.device)
        return self.predict(workloads)

    def predict(self, workloads: Sequence[Workload]) -> list[Estimate]:
        """Predict the costs on this device of networks at batch 1."""
        return self.predict_steps(OperatorCountTable.of_workloads(workloads)) if workloads else []

    def predict_steps(self, steps: OperatorCountTable) -> list[Estimate]:
        """Predict costs as `predict` does, for networks given as operator counts."""
        return self.estimates(self.blocks(steps))

    def blocks(self, steps: OperatorCountTable, known: Blocks | None = None) -> Blocks:
        """Return the features of networks that this predictor uses.

        If hwnas's own kernels run the networks, the features include the predicted resource usage
        of the kernels on the GPU.

        Args:
            steps: Operator counts of the networks.
            known: Features of the networks from `blocks_of_steps`, if they were computed already.
        """
        blocks = blocks_of_steps(steps) if known is None else known
        own = self._kernels
        return blocks if own is None else {**blocks, KERNELS: own.block(steps)}

    def choice_costs(self, space: SearchSpace, target: Target) -> dict[str, dict[str, float]]:
        """Return the expected cost of each option of each choice; see `mean_cost_of_options`."""
        return mean_cost_of_options(self, space, target, random.Random(0))

    def held_out(self, folds: int = 20) -> list[Estimate]:
        """Predict each measured network by a predictor that has not seen it.

        Args:
            folds: Number of predictors that are fitted, each on all but some of the networks; if
                there are no more networks than folds, each fold leaves out one network.
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
        """Variances of the kernel's parts and, last, the noise.

        They are those of the prior if fewer than three networks were measured.
        """
        known = len(self.costs) >= MINIMUM_MEASUREMENTS
        return np.exp(self._process.theta if known else self._prior.mean)

    def unfamiliar(self, steps: OperatorCountTable) -> list[str]:
        """Return the quantities in which one network lies outside of the known range, in words."""
        known = np.vstack(
            [quantities(self.steps), amounts(self.transfer_prior.reference["physical"])]
        )
        least, most = known.min(0), known.max(0)
        found = quantities(steps)[0]
        outside = (found < least / _MARGIN) | (found > most * _MARGIN)
        return [
            f"{name} is {found[i]:,.0f} (known: {least[i]:,.0f} to {most[i]:,.0f})"
            for i, name in enumerate(FEATURES)
            if outside[i] and not name.endswith("_ms")
        ]

    @property
    def note(self) -> str:
        """Remark on the features of networks; empty if there is nothing to remark."""
        return "" if self._kernels is None else self._kernels.note

    def logs(self, blocks: Blocks) -> tuple[Numbers, Numbers]:
        """Return mean and standard deviation of the log cost, each of shape (N,).

        Args:
            blocks: Features of N networks, from `blocks`.

        Raises:
            ConfigError: Fewer than three networks were measured.
        """
        mean, std = self._process.predict(self.parts(blocks))
        return mean, self.transfer_prior.hyperparameters.scale(self._process) * std

    def parts(self, blocks: Blocks) -> Parts:
        """Return the inputs of the Gaussian process's kernel for networks with these features."""
        shared = {name: block for name, block in blocks.items() if name != KERNELS}
        parts = self.transfer_prior.parts(self.transfer_prior.see(shared))
        own = self._kernels
        return parts if own is None else parts.beside(own.parts(blocks[KERNELS]))

    @cached_property
    def _kernels(self) -> KernelFeatures | None:
        return kernel_features(self.device, self.hardware) if self.metric == "latency_ms" else None

    @property
    def _prior(self) -> Prior:
        """Prior from the known devices, with a vague prior for the features of hwnas's kernels."""
        prior = self.transfer_prior.prior
        if self._kernels is None:
            return prior
        linear = [*self.parts(self.blocks(OperatorCountTable.of([{}]))).linear]
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
        """Predict the costs of networks with these features."""
        return [
            Estimate.log_normal(self.metric, float(mean), float(std), self.device)
            for mean, std in zip(*self.logs(blocks), strict=True)
        ]
