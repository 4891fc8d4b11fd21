"""Calibration of a device: the most informative networks are measured on it and stored."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from hwnas.atomic import storage_errors, write_text
from hwnas.deploy.export.to_onnx import export_onnx, export_traced, traces_alike
from hwnas.deploy.measurement.energy import check_energy, measured_energy
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.timing import measure
from hwnas.deploy.targets.conditions import EMULATOR
from hwnas.deploy.targets.machine import processor_of
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError, DeviceError
from hwnas.predictors.devices.device import MINIMUM_MEASUREMENTS, DevicePredictor
from hwnas.predictors.devices.selection import most_informative
from hwnas.predictors.devices.store import DeviceProfile, DeviceStore, cost_metric
from hwnas.predictors.estimate import Estimate
from hwnas.predictors.features.blocks import Blocks, blocks_of_steps, rows_of
from hwnas.search_spaces import Architecture, OperatorCountTable, SearchSpace

__all__ = [
    "CalibrationOptions",
    "ExportOne",
    "Exporter",
    "MeasuredMetric",
    "NetworkMeasurement",
    "Pool",
    "calibrate",
    "check_same_hardware",
    "count_known",
    "drawn_networks",
    "export_chosen",
    "exported_for_a_while",
    "quickest_export",
]

ExportOne = Callable[[SearchSpace, Architecture, Path], None]
"""Function that exports a network of a space with random weights to an ONNX file."""
Exporter = Callable[[ExportOne, SearchSpace, Sequence[tuple[Architecture, Path]]], Iterable[object]]
"""Function that calls an `ExportOne` for each network; its iterable has an item for each."""

_POOL = 200
_EXPORT_SHARE = 0.8  # of the time of a calibration


def drawn_networks(space: SearchSpace, seed: int, count: int) -> tuple[Architecture, ...]:
    """Return the smallest, the largest and ``count`` random networks of a space, each once."""
    rng = random.Random(seed)
    drawn = {space.smallest(): None, space.largest(): None}
    return tuple(drawn | dict.fromkeys(space.sample(rng) for _ in range(count)))


@dataclass(frozen=True, eq=False)
class Pool:
    """Networks of a space that may be measured.

    Attributes:
        networks: Smallest, largest and random networks.
        steps: Operator counts of the networks, at batch 1.
        blocks: Features of the networks that do not depend on the device.
    """

    networks: tuple[Architecture, ...]
    steps: OperatorCountTable
    blocks: Blocks

    @classmethod
    def of(cls, space: SearchSpace, seed: int = 0, count: int = _POOL) -> Pool:
        """Return a pool of drawn networks; they are fewer if the space holds fewer."""
        return cls.of_networks(space, drawn_networks(space, seed, count))

    @classmethod
    def of_networks(cls, space: SearchSpace, drawn: tuple[Architecture, ...]) -> Pool:
        """Return the pool of given networks of a space."""
        steps = space.operator_counts(drawn)
        return cls(drawn, steps, blocks_of_steps(steps))

    def most_informative(
        self, predictor: DevicePredictor, count: int, known: Sequence[str] = ()
    ) -> list[int]:
        """Return indices of the networks whose measurement leaves the least variance over all.

        Args:
            predictor: Predictor of the device from the measurements so far.
            count: Number of networks; fewer are returned if fewer are left.
            known: Ids of networks that were measured already.
        """
        place = {network.id: index for index, network in enumerate(self.networks)}
        measured = [place[name] for name in known if name in place]
        parts = predictor.parts(self.seen_by(predictor))
        return most_informative(parts, predictor.variances, count, measured)

    def seen_by(self, predictor: DevicePredictor) -> Blocks:
        """Return the features of the networks that a predictor uses."""
        return predictor.blocks(self.steps, self.blocks)


@dataclass(frozen=True)
class NetworkMeasurement:
    """Measurement of one network.

    Attributes:
        network: Id of the network.
        predicted: Estimate before the measurement; None if no prediction was possible yet.
        measured: Measured cost, in the metric's unit.
        number: Number of networks that are known of the device now.
        error: Upper bound of the 90% interval over the prediction, minus 1, as the median over the
            pool; None if no prediction is possible yet.
    """

    network: str
    predicted: Estimate | None
    measured: float
    number: int
    error: float | None


@dataclass(frozen=True)
class CalibrationOptions:
    """Extent of a calibration, and functions that do or watch parts of it.

    Attributes:
        samples: Number of networks of the space that shall be known of the target, at least 3.
        until_error: Value of `NetworkMeasurement.error`, as a fraction, at which to stop early.
        block: Number of networks that are measured together before the next ones are chosen.
        on_reading: Function that is called for every network that was measured.
        advance: Function that is called with the completed share of a block, from 0 to 1, and with
            what is being done.
        export: Function that exports the networks; one after the other if None.

    Raises:
        ConfigError: ``samples`` or ``until_error`` is out of range.
    """

    samples: int = 10
    until_error: float | None = None
    block: int = 5
    on_reading: Callable[[NetworkMeasurement], None] = lambda reading: None
    advance: Callable[[float, str], None] = lambda share, text: None
    export: Exporter | None = None

    def __post_init__(self) -> None:
        _check_samples(self.samples)
        if self.until_error is not None and not 0 < self.until_error < 10:
            raise ConfigError(
                f"until_error is {self.until_error:g}; expected a fraction such as 0.05"
            )


def calibrate(
    target: Target,
    space: SearchSpace,
    store: DeviceStore,
    options: CalibrationOptions | None = None,
    metric: MeasuredMetric = "latency_ms",
    settings: TimingSettings | None = None,
) -> DeviceProfile:
    """Measure networks on a target of this machine until enough is known, and store its profile.

    Networks of the space that the store already has of the target count, so an interrupted
    calibration continues where it stopped. The profile is written after every few networks.

    Args:
        target: Target on which to measure.
        space: Space of the networks.
        store: Store of the profile.
        options: Extent of the calibration; the defaults if None.
        metric: Metric to measure; energy needs a counter in the hardware.
        settings: Settings of the timing of each network.

    Raises:
        DeviceError: The target cannot be used here, or the store knows it from other hardware.
        EnergyUnavailable: Nothing on this machine counts energy.
    """
    options = options or CalibrationOptions()
    samples, until_error = options.samples, options.until_error
    profile = _known_so_far(target, metric, space, store)
    drawn = drawn_networks(space, 0, _POOL)
    if until_error is None and count_known(drawn, profile.networks) >= min(samples, len(drawn)):
        return profile
    measure_some = _MEASURES[metric](target, settings, _measuring(options))
    pool = Pool.of_networks(space, drawn)
    predictor = DevicePredictor.of(profile)
    error = _error(predictor, pool)
    while (known := count_known(drawn, profile.networks)) < samples and not _small_enough(
        error, until_error
    ):
        wanted = min(options.block, samples - known)
        chosen = pool.most_informative(predictor, wanted, profile.networks)
        if not chosen:
            break  # the space holds no more
        expected = _expected(predictor, rows_of(pool.seen_by(predictor), np.array(chosen)))
        networks = [pool.networks[i] for i in chosen]
        with exported_for_a_while(networks, space, options.export, options.advance) as models:
            measured = measure_some(models)
        profile = _with_measured(profile, pool, chosen, measured)
        predictor = DevicePredictor.of(profile)
        profile = replace(profile, held_out_error=predictor.held_out_error)
        store.save(profile)
        error = _error(predictor, pool)
        _report(pool, chosen, expected, measured, len(profile), error, options.on_reading)
    return profile


def _measuring(options: CalibrationOptions) -> _Progress:
    """Return the function that is called with the share of a block that was measured."""
    return lambda share: options.advance(
        _EXPORT_SHARE + (1 - _EXPORT_SHARE) * share, "measuring networks"
    )


def _known_so_far(
    target: Target, metric: MeasuredMetric, space: SearchSpace, store: DeviceStore
) -> DeviceProfile:
    if not store.has(target.name, metric):
        runtime, hardware = target.device.runtime, processor_of(target.device.hardware)
        return DeviceProfile(
            target.name, metric, space=space.fingerprint, hardware=hardware, runtime=runtime
        )
    known = store.load(target.name, metric)
    check_same_hardware(store, target, known.hardware)
    spaces = dict.fromkeys([*known.space.split(", "), space.fingerprint])
    return replace(known, space=", ".join(spaces))


def _check_samples(samples: int) -> None:
    """Refuse a number of networks that is too small for a prediction."""
    if not isinstance(samples, int):
        raise ConfigError(f"samples is {samples!r}; expected a whole number")
    if samples < MINIMUM_MEASUREMENTS:
        raise ConfigError(f"samples is {samples}; expected at least {MINIMUM_MEASUREMENTS}")


def check_same_hardware(store: DeviceStore, target: Target, hardware: str) -> None:
    """Refuse to add to measurements that were taken on another machine.

    Raises:
        DeviceError: ``hardware``, on which they were taken, is not the target's.
    """
    now = processor_of(target.device.hardware)
    if hardware != now:
        machine = "this machine" if target.device.is_here else target.device.hardware
        raise DeviceError(
            f"{store.folder} has measurements of {target.name} on {hardware!r}, but {machine} is "
            f"{now!r}; give another --store, or remove {store.folder / target.name}"
        )


def _with_measured(
    profile: DeviceProfile, pool: Pool, chosen: Sequence[int], measured: MeasuredCosts
) -> DeviceProfile:
    names = [pool.networks[i].id for i in chosen]
    more = profile.with_more(names, pool.steps.rows(np.array(chosen)), np.array(measured.costs))
    return replace(
        more,
        clock=measured.clock,
        versions=dict(measured.versions),
        time=measured.time,
        reference_ms=measured.reference_ms,
        contended=profile.contended + measured.contended,
    )


def count_known(drawn: Sequence[Architecture], ids: Sequence[str]) -> int:
    """Return how many of some networks are among those with the given ids."""
    return len({network.id for network in drawn}.intersection(ids))


def _expected(predictor: DevicePredictor, blocks: Blocks) -> list[Estimate | None]:
    if len(predictor.costs) < MINIMUM_MEASUREMENTS:
        return [None] * len(blocks["physical"])
    return [*predictor.estimates(blocks)]


def _small_enough(error: float | None, until_error: float | None) -> bool:
    return error is not None and until_error is not None and error <= until_error


def _error(predictor: DevicePredictor, pool: Pool) -> float | None:
    if len(predictor.costs) < MINIMUM_MEASUREMENTS:
        return None
    found = predictor.estimates(pool.seen_by(predictor))
    return float(np.median([each.interval90[1] / each.mean - 1 for each in found]))


@contextlib.contextmanager
def exported_for_a_while(
    networks: Sequence[Architecture],
    space: SearchSpace,
    export: Exporter | None = None,
    advance: Callable[[float, str], None] = lambda share, text: None,
) -> Iterator[list[Path]]:
    """Export networks as temporary ONNX files, untrained: they cost as much as trained ones."""
    with tempfile.TemporaryDirectory() as folder:
        paths = _paths(networks, Path(folder))
        pairs = list(zip(networks, paths, strict=True))
        exported = (export or _export_in_turn)(quickest_export(space), space, pairs)
        for done, _ in enumerate(exported, start=1):
            text = f"exporting network {done}/{len(pairs)}"
            advance(_EXPORT_SHARE * done / len(pairs), text)
        yield paths


def _export_in_turn(
    export: ExportOne, space: SearchSpace, networks: Sequence[tuple[Architecture, Path]]
) -> Iterator[None]:
    """Export untrained networks one after the other; see `Exporter`."""
    for network, path in networks:
        export(space, network, path)
        yield


def quickest_export(space: SearchSpace) -> ExportOne:
    """Return the quickest way to export networks that cost as much as shipped ones.

    Tracing takes a twentieth of the time. It is used if the space says that it gives the same
    operators, or if it does so for a random network of the space.
    """
    if space.traceable:
        return _export_traced
    known = _traced_alike.get(space.fingerprint)
    if known is None:
        network = space.sample(random.Random(0))
        known = traces_alike(space.build(network), space.input_shape(network))
        _traced_alike[space.fingerprint] = known
    return _export_traced if known else _export_untrained


_traced_alike: dict[str, bool] = {}
"""Results of `traces_alike` by the fingerprint of the space."""


def _export_traced(space: SearchSpace, network: Architecture, path: Path) -> None:
    export_traced(_untrained(space, network), space.input_shape(network), path)


def _export_untrained(space: SearchSpace, network: Architecture, path: Path) -> None:
    shape = space.input_shape(network)
    export_onnx(_untrained(space, network), shape, path, traceable=space.traceable)


def _untrained(space: SearchSpace, network: Architecture) -> nn.Module:
    """Return a network whose vectors are all different, as those of a trained one are.

    New biases and normalisation are zeros and ones. Equal vectors become one constant of an ONNX
    file, from which ONNX Runtime makes other operators in fp16 than for trained networks.
    """
    module = space.build(network)
    for tensor in module.state_dict().values():
        if tensor.dim() == 1 and tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return module


def _paths(networks: Sequence[Architecture], folder: Path) -> list[Path]:
    return [folder / f"{network.id}.onnx" for network in networks]


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs of some networks, and how they were measured.

    Attributes:
        costs: Cost of each network, in the metric's unit.
        clock: Clock or counter that was read.
        versions: Versions of the packages that matter.
        time: Time of the measurement, ISO 8601.
        reference_ms: Median time of the reference model beside them; None if it was not timed.
        contended: Number of measurements that other work on the machine disturbed.
    """

    costs: tuple[float, ...]
    clock: str
    versions: Mapping[str, str]
    time: str
    reference_ms: float | None = None
    contended: int = 0


MeasuredMetric = Literal["latency_ms", "energy_mj"]
_Progress = Callable[[float], None]
_Measure = Callable[[Sequence[Path]], MeasuredCosts]


def _latency(target: Target, settings: TimingSettings | None, progress: _Progress) -> _Measure:
    def work(models: Sequence[Path]) -> MeasuredCosts:
        named = {path.stem: path for path in models}
        found = [*measure(named, target, settings, progress).values()]
        last = found[-1]
        if emulator := last.conditions.get(EMULATOR):
            raise DeviceError(
                f"the processor of {target.name} is emulated by {emulator}, so its times say "
                "nothing about a device; calibrate on the device itself"
            )
        costs = tuple(each.latency_ms for each in found)
        disturbed = sum(each.contended for each in found)
        return MeasuredCosts(costs, last.clock, last.versions, last.time, last.anchor_ms, disturbed)

    return work


def _energy(target: Target, settings: TimingSettings | None, progress: _Progress) -> _Measure:
    check_energy(target)

    def work(models: Sequence[Path]) -> MeasuredCosts:
        found = []
        for done, path in enumerate(models, start=1):
            found.append(measured_energy(path, target))
            progress(done / len(models))
        costs, last = tuple(each.energy_mj for each in found), found[-1]
        time = datetime.now(UTC).isoformat(timespec="seconds")
        return MeasuredCosts(costs, last.counter, last.versions, time)

    return work


_MEASURES: dict[MeasuredMetric, Callable[[Target, TimingSettings | None, _Progress], _Measure]] = {
    "latency_ms": _latency,
    "energy_mj": _energy,
}


def _report(
    pool: Pool,
    chosen: Sequence[int],
    expected: Sequence[Estimate | None],
    measured: MeasuredCosts,
    known: int,
    error: float | None,
    on_reading: Callable[[NetworkMeasurement], None],
) -> None:
    first = known - len(chosen) + 1
    rows = zip(chosen, expected, measured.costs, strict=True)
    for number, (index, before, cost) in enumerate(rows, start=first):
        on_reading(NetworkMeasurement(pool.networks[index].id, before, cost, number, error))


def export_chosen(
    device: str,
    space: SearchSpace,
    store: DeviceStore,
    folder: Path,
    samples: int = 10,
    metric: str = "latency_ms",
) -> Path:
    """Write the networks to measure on a device that hwnas cannot reach, and a table to fill in.

    Args:
        device: Name for the device.
        space: Space of the networks.
        store: Store, whose measurements of the device are taken into account.
        folder: Folder that gets ``<id>.onnx`` for each network and ``measurements.csv``.
        samples: Number of networks, at least 3.
        metric: Metric that shall be measured.

    Returns:
        Path of the table, which has a line for each network and no costs.

    Raises:
        ConfigError: ``samples`` is too small, or a table cannot have such a metric.
    """
    _check_samples(samples)
    cost = cost_metric(metric)
    profile = store.load(device, cost) if store.has(device, cost) else DeviceProfile(device, cost)
    predictor = DevicePredictor.of(profile)
    pool = Pool.of(space)
    chosen = pool.most_informative(predictor, samples, profile.networks)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        networks = [pool.networks[i] for i in chosen]
        models = _paths(networks, folder)
        for network, model in zip(networks, models, strict=True):
            _export_untrained(space, network, model)
    lines = [f"network,{metric}", *(f"{model.name}," for model in models)]
    write_text(folder / "measurements.csv", "\n".join(lines) + "\n")
    return folder / "measurements.csv"
