"""Prediction and measurement of a network's costs on devices."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

from torch import nn

from hwnas.api.elastic_model import ElasticModel
from hwnas.api.objectives import target_names
from hwnas.api.options import named
from hwnas.api.run import Network, Run
from hwnas.deploy.bundles.bundle import Bundle
from hwnas.deploy.export.to_onnx import export_onnx
from hwnas.deploy.measurement.cold_start import StartMeasurement, cold_start
from hwnas.deploy.measurement.energy import EnergyReading, measured_energy
from hwnas.deploy.measurement.latency_timer import TimingSettings
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.measurement.memory import PeakMemory, peak_memory
from hwnas.deploy.measurement.sustained import SustainedLatency
from hwnas.deploy.measurement.sustained import measure_sustained as sustained
from hwnas.deploy.measurement.timing import measure as measure_files
from hwnas.deploy.onnx.workload import OnnxWorkload, read_workload
from hwnas.deploy.targets.status import DeviceStatus, devices
from hwnas.deploy.targets.target import Target
from hwnas.errors import ConfigError
from hwnas.experiment import space_of
from hwnas.predictors.devices.device import DevicePredictor
from hwnas.predictors.devices.fingerprint import fingerprint
from hwnas.predictors.devices.from_spec import predict_from_spec
from hwnas.predictors.devices.prediction import (
    KnownDevice,
    Prediction,
    predict_from_fingerprint,
)
from hwnas.predictors.devices.prediction import known_devices as devices_in
from hwnas.predictors.devices.prediction import predict as predict_costs
from hwnas.predictors.devices.spec_sheet import SpecSheet, read_spec
from hwnas.predictors.devices.store import DeviceStore
from hwnas.predictors.expected_cost import mean_cost
from hwnas.predictors.explain import Explanation, explanation
from hwnas.predictors.metrics.gemm import Gemm
from hwnas.predictors.metrics.gemm_profile import predict_gemm as predict_product
from hwnas.predictors.metrics.gemm_tiles import GemmTile
from hwnas.predictors.metrics.memory_profile import has_memory, predict_memory
from hwnas.progress import Reporter, make_reporter
from hwnas.recipe import Named
from hwnas.search_spaces import Architecture, OperatorCountTable, SearchSpace, Workload
from hwnas.search_spaces.early_exit import EarlyExitWorkload
from hwnas.search_spaces.registry import SPACES, named_space

__all__ = [
    "SpaceOfDevices",
    "device_store",
    "explain",
    "known_devices",
    "measure",
    "measure_cold_start",
    "measure_energy",
    "measure_peak_memory",
    "measure_sustained",
    "predict",
    "predict_gemm",
    "predictions",
    "search_space",
    "spec_sheet",
    "target_of",
    "targets",
]

Model: TypeAlias = str | Path | Bundle | Network | nn.Module
SpaceOfDevices: TypeAlias = str | Path | Named | SearchSpace | Run | nn.Module | ElasticModel


def targets() -> list[DeviceStatus]:
    """Return the targets of this machine and of added devices; `DeviceStatus.usable` says if now.

    Added devices are asked, which takes some seconds for one that does not answer.
    """
    return devices()


def known_devices(store: str | Path | None = None) -> list[KnownDevice]:
    """Return the devices that `predict` knows: those that hwnas ships, and those in a store.

    Args:
        store: Folder of device profiles; ``$HWNAS_HOME/devices`` if None.
    """
    return devices_in(device_store(store))


def predict(
    model: Model | Architecture,
    target: str | Target | Sequence[str | Target] = (),
    *,
    spec: str | Path | SpecSheet | None = None,
    input_shape: tuple[int, ...] | None = None,
    space: SpaceOfDevices | None = None,
    image_shape: tuple[int, int, int] = (64, 64, 3),
    outputs: int = 100,
    from_fingerprint: bool = False,
    store: str | Path | None = None,
) -> list[Prediction]:
    """Predict the costs of a network on devices, with 90% intervals, without timing it.

    Args:
        model: ONNX file, bundle or its path, finalist of a run, module, or architecture of
            ``space``.
        target: Known target or device, or several: those that hwnas ships and those that were
            calibrated (``hwnas devices`` lists them).
        spec: Spec sheet, or a TOML file with one, of a device that nobody has measured; its latency
            is then predicted first, for one image in float32.
        input_shape: Shape of the input without the batch, such as (3, 224, 224): for a module, and
            for a file that leaves sizes open.
        space: Space of an architecture, as for `hwnas.calibrate`.
        image_shape: Height, width and channels of the images, for a space without its own.
        outputs: Number of outputs of the networks, for a space without its own.
        from_fingerprint: Whether to predict latency from small models that run on the target for
            ten seconds, in place of stored measurements.
        store: Folder of device profiles; ``$HWNAS_HOME/devices`` if None.

    Returns:
        One prediction for each metric that is known of each target; `Prediction.estimate` has the
        mean and the interval in the unit that its metric's name ends with.

    Raises:
        ConfigError: A device is not known, or an argument is missing.
        ArtifactError: The file is missing or damaged, or the module cannot be exported.
    """
    targets = target_names(target)
    if not targets and spec is None:
        raise ConfigError("give target=... with known targets, or spec=... with a spec sheet")
    sheet, kept = spec_sheet(spec), device_store(store)
    if isinstance(model, Architecture):
        if space is None:
            raise ConfigError("an architecture needs its space; give space=...")
        networks = search_space(space, image_shape, outputs)
        network = networks.check(model)
        steps = networks.operator_counts([network])
        return predictions(
            kept,
            targets,
            steps,
            lambda batch: networks.workload(network, batch),
            from_fingerprint,
            sheet,
        )
    with tempfile.TemporaryDirectory() as folder:
        path, sizes = _onnx_file(model, input_shape, Path(folder)), input_shape
        file = read_workload(path, input_shape=sizes)
        return predictions(
            kept,
            targets,
            file,
            lambda batch: read_workload(path, batch, sizes).workload,
            from_fingerprint,
            sheet,
        )


def predictions(
    store: DeviceStore,
    targets: Sequence[str],
    network: OnnxWorkload | OperatorCountTable,
    at_batch: Callable[[int], Workload],
    from_fingerprint: bool = False,
    spec: SpecSheet | None = None,
) -> list[Prediction]:
    """Predict every known cost of a network, with advice where hwnas's own kernels run it.

    Args:
        store: Store of calibrated devices.
        targets: Names of targets or devices.
        network: ONNX file that was read, or operator counts of one network.
        at_batch: Function that returns the network's workload at a batch size.
        from_fingerprint: Whether to predict latency from small models that run on the targets.
        spec: Spec sheet of one more device, which nobody has measured.
    """
    if from_fingerprint:
        prints = [fingerprint(Target.parse(name)) for name in targets]
        found = [predict_from_fingerprint(each, network) for each in prints]
    else:
        found = predict_costs(store, targets, network)
        workload = at_batch(1)
        if isinstance(workload, EarlyExitWorkload):
            early = OperatorCountTable.of_workloads([workload.until_exit])
            found = _over_images(found, predict_costs(store, targets, early), workload.share)
    measured = [name for name in dict.fromkeys(targets) if has_memory(store, name)]
    found += [predict_memory(store, name, at_batch) for name in measured]
    guessed = [] if spec is None else [predict_from_spec(spec, network, store)]
    return [*guessed, *(_advised(each, at_batch) for each in found)]


def _over_images(
    whole: Sequence[Prediction], early: Sequence[Prediction], share: float
) -> list[Prediction]:
    """Return the means of predictions over images, a share of which leaves the network early."""
    note = f"mean over images, of which {share:.0%} leave at the early exit"
    found = []
    for each, part in zip(whole, early, strict=True):
        batch = 1
        with contextlib.suppress(ConfigError):  # a custom device has no target's name
            batch = Target.parse(each.estimate.target).device.batch
        estimate = mean_cost(part.estimate, each.estimate, share**batch)
        found.append(replace(each, estimate=estimate, notes=(*each.notes, note)))
    return found


def _advised(prediction: Prediction, at_batch: Callable[[int], Workload]) -> Prediction:
    """Add notes on channel counts that waste work, if hwnas's own kernels run the network."""
    _, runtime, number_format, *_ = [*prediction.estimate.target.split("-"), "", ""]
    if runtime != "triton" or find_spec("triton") is None:
        return prediction
    from hwnas.deploy.matching.kernel_advice import advice

    found = advice(at_batch(1), 4 if number_format == "fp32" else 2)
    return replace(prediction, notes=(*prediction.notes, *found))


def measure(
    models: Model | Sequence[Model],
    target: str | Target,
    *,
    input_shape: tuple[int, ...] | None = None,
    patience_s: float = 0.0,
) -> list[Measurement]:
    """Time networks on a target, interleaved, so that a change of the machine's speed affects all.

    Args:
        models: ONNX file, bundle or its path, finalist of a run, or module; or several.
        target: Target of this machine or of an agent, such as ``"cpu-onnxruntime-fp32-b1-t1"``.
        input_shape: Channels, height and width of the input of modules.
        patience_s: Longest time to repeat until the latency is as low as in earlier sessions, in
            seconds.

    Returns:
        One measurement for each network, in the same order; its `headline` has the quantiles of the
        latency of a batch in milliseconds.

    Raises:
        ConfigError: The target is unknown.
        ArtifactError: A file is damaged or cannot run on the target.
        DeviceError: The target cannot be used.
    """
    several = models if isinstance(models, list | tuple) else [models]
    with tempfile.TemporaryDirectory() as folder:
        files = {
            str(index): _onnx_file(model, input_shape, Path(folder) / str(index))
            for index, model in enumerate(several)
        }
        settings = TimingSettings(patience_s=patience_s)
        return list(measure_files(files, target_of(target), settings).values())


def measure_sustained(
    model: Model,
    target: str | Target,
    minutes: float = 10.0,
    *,
    input_shape: tuple[int, ...] | None = None,
    reporter: Reporter | None = None,
) -> SustainedLatency:
    """Measure the latency of a network that runs again and again, as the device grows hot.

    Args:
        model: ONNX file, bundle or its path, finalist of a run, or module.
        target: Target of this machine or of a device.
        minutes: Time for which the network runs.
        input_shape: Channels, height and width of the input of a module.
        reporter: Reporter of the progress; the standard error if None.

    Raises:
        ConfigError: The target is unknown, or the time is not positive or longer than a day.
        ArtifactError: The file is damaged or cannot run on the target.
        DeviceError: The target cannot be used, or its device does not answer.
    """
    reporter = reporter or make_reporter()
    with tempfile.TemporaryDirectory() as folder, reporter.stage("sustained load") as advance:
        path = _onnx_file(model, input_shape, Path(folder))
        return sustained(path, target_of(target), minutes, lambda share: advance(share, "timing"))


def measure_cold_start(
    model: Model,
    target: str | Target,
    *,
    input_shape: tuple[int, ...] | None = None,
    starts: int = 5,
) -> StartMeasurement:
    """Measure how long new processes take until a network's first answer.

    Args:
        model: ONNX file, bundle or its path, finalist of a run, or module.
        target: Target of this machine or of an agent.
        input_shape: Channels, height and width of the input of a module.
        starts: Number of processes, one after the other.

    Raises:
        ConfigError: The target is unknown, or ``starts`` is less than 1.
        ArtifactError: The file is damaged or cannot run on the target.
        DeviceError: The target cannot be used, or its device does not answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = _onnx_file(model, input_shape, Path(folder))
        return cold_start(path, target_of(target), starts)


def measure_peak_memory(
    model: Model,
    target: str | Target,
    *,
    input_shape: tuple[int, ...] | None = None,
    processes: int = 3,
) -> PeakMemory:
    """Measure the peak memory of a network in new processes, without that of the runtime itself.

    Args:
        model: ONNX file, bundle or its path, finalist of a run, or module.
        target: Target of this machine's processor, or of an agent's.
        input_shape: Channels, height and width of the input of a module.
        processes: Number of processes, one after the other, of which the median counts.

    Raises:
        ConfigError: The target is unknown, or ``processes`` is less than 1.
        ArtifactError: The file is damaged or cannot run on the target.
        DeviceError: The target cannot be used, or its memory cannot be measured.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = _onnx_file(model, input_shape, Path(folder))
        return peak_memory(path, target_of(target), processes)


def measure_energy(
    model: Model,
    target: str | Target,
    *,
    input_shape: tuple[int, ...] | None = None,
    seconds: float = 2.0,
) -> EnergyReading:
    """Measure the energy of a run of a network by the counters or sensors of its hardware.

    Args:
        model: ONNX file, bundle or its path, finalist of a run, or module.
        target: Target of this machine or of an agent.
        input_shape: Channels, height and width of the input of a module.
        seconds: Least duration on this machine; sensors that are read seldom need more.

    Raises:
        ConfigError: The target is unknown, or ``seconds`` is not positive.
        ArtifactError: The file is damaged or cannot run on the target.
        DeviceError: The target cannot be used, or its device does not answer.
        EnergyUnavailable: The hardware has no counter and no sensor, or it did not advance.
    """
    if not seconds > 0:
        raise ConfigError(f"seconds is {seconds:g}; expected more than 0")
    with tempfile.TemporaryDirectory() as folder:
        path = _onnx_file(model, input_shape, Path(folder))
        return measured_energy(path, target_of(target), seconds)


def explain(
    model: Model,
    target: str | Target,
    *,
    input_shape: tuple[int, ...] | None = None,
    store: str | Path | None = None,
) -> Explanation:
    """Return the operators of a network with their costs, predicted beside profiled.

    Args:
        model: ONNX file, bundle or its path, finalist of a run, or module.
        target: Known target or device. Operators are profiled if it is a target of this machine
            whose runtime can do that.
        input_shape: Shape of the input without the batch, such as (3, 224, 224): for a module, and
            for a file that leaves sizes open.
        store: Folder of device profiles; ``$HWNAS_HOME/devices`` if None.

    Raises:
        ConfigError: The device is not known.
        ArtifactError: The file is missing or damaged, or the module cannot be exported.
    """
    name = target_names(target)[0]
    with tempfile.TemporaryDirectory() as folder:
        path = _onnx_file(model, input_shape, Path(folder))
        network = read_workload(path, input_shape=input_shape)
        return explanation(DevicePredictor.load(device_store(store), name), path, network)


def predict_gemm(
    m: int,
    n: int,
    k: int,
    target: str | Target | Sequence[str | Target],
    *,
    tile: str | GemmTile | None = None,
    store: str | Path | None = None,
) -> list[Prediction]:
    """Predict the latency of a matrix product on targets, and its power where that is known.

    Args:
        m: Rows of the product.
        n: Columns of the product.
        k: Length of the sums.
        target: Target on which ``hwnas calibrate --gemm`` has timed products, or several.
        tile: Tile for a target of the runtime ``triton``, such as ``"64x64x32x4x3"`` (rows,
            columns, sums, warps, stages); the one that is predicted to be fastest if None.
        store: Folder of device profiles; ``$HWNAS_HOME/devices`` if None.

    Raises:
        ConfigError: A size or the tile is wrong, or no products were timed on the target.
    """
    gemm, given = Gemm(m, n, k), GemmTile.parse(tile) if isinstance(tile, str) else tile
    kept, names = device_store(store), target_names(target)
    return [each for name in names for each in predict_product(kept, name, gemm, given)]


def target_of(given: str | Target) -> Target:
    """Return a target that is given by its name or as an object."""
    return given if isinstance(given, Target) else Target.parse(given)


def _onnx_file(model: Model, input_shape: tuple[int, ...] | None, folder: Path) -> Path:
    if isinstance(model, Network):
        return model.bundle.onnx_file
    if isinstance(model, Bundle):
        return model.onnx_file
    if not isinstance(model, nn.Module):
        path = Path(model)
        return Bundle.load(path).onnx_file if path.is_dir() else path
    if input_shape is None or len(input_shape) != 3:
        raise ConfigError(
            f"input_shape is {input_shape}; a module needs channels, height and width, such as "
            "(3, 224, 224)"
        )
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    export_onnx(model, (input_shape[0], input_shape[1], input_shape[2]), path)
    return path


def search_space(
    space: SpaceOfDevices, image_shape: tuple[int, int, int], outputs: int
) -> SearchSpace:
    """Return the search space that a user names or gives.

    Args:
        space: See `calibrate`.
        image_shape: Height, width and channels of the images, for a space without its own.
        outputs: Number of outputs of the networks, for a space without its own.

    Raises:
        ConfigError: The name is unknown, or an option is wrong.
    """
    space = named(space)  # type: ignore[assignment]
    if isinstance(space, SearchSpace):
        return space
    if isinstance(space, Run):
        return space.space
    if isinstance(space, nn.Module):
        space = ElasticModel(space)
    if isinstance(space, ElasticModel):
        return space(image_shape, outputs)
    if isinstance(space, Named):
        return named_space(space.name, image_shape, outputs, space.options)
    if str(space) not in SPACES and Path(space).exists():
        return space_of(space)
    return named_space(str(space), image_shape, outputs, {})


def spec_sheet(given: str | Path | SpecSheet | None) -> SpecSheet | None:
    """Return a spec sheet that is given as an object, or as the path of a TOML file."""
    return given if given is None or isinstance(given, SpecSheet) else read_spec(Path(given))


def device_store(folder: str | Path | None) -> DeviceStore:
    """Return the store of device profiles in a folder; the user's own if None."""
    return DeviceStore.default() if folder is None else DeviceStore(Path(folder))
