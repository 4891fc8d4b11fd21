"""Commands about devices: measure on them, make them known, predict for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import Json, Targets, app, out, print_json
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.deploy.onnx_workload import OnnxWorkload
    from hwnas.predictors.calibration import Reading
    from hwnas.predictors.prediction import Prediction
    from hwnas.predictors.store import DeviceProfile, DeviceStore
    from hwnas.search_spaces import SearchSpace, StepTable, Workload

Store = Annotated[
    Path | None,
    typer.Option(help="Folder of device profiles; $HWNAS_HOME/devices if not given."),
]
Space = Annotated[
    str | None,
    typer.Option(help="A space's name, \"module:object\", a recipe or a run's folder."),
]
Image = Annotated[str, typer.Option(help="Height x width x channels of the space's images.")]
Classes = Annotated[int, typer.Option(min=1, help="Length of the networks' output.")]
Preset = Annotated[str | None, typer.Option(help="Of the space.")]
Input = Annotated[
    str | None,
    typer.Option("--input", help="Sizes of the model's input without the batch, e.g. 3x224x224."),
]


@app.command()
def measure(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="An ONNX file.")],
    target: Annotated[str, typer.Option(help="E.g. cpu-onnxruntime-fp32-b1-t1.")],
    as_json: Json = False,
) -> None:
    """Time an ONNX file on a target of this machine."""
    from hwnas.deploy.device import Target
    from hwnas.deploy.timing import measure
    from hwnas.terminal import print_measurement

    measured = measure({str(model): model}, Target.parse(target))[str(model)]
    if as_json:
        print_json(measured.to_json())
    else:
        print_measurement(out, str(model), measured)


@app.command()
def fingerprint(
    target: Annotated[str, typer.Option(help="E.g. cpu-onnxruntime-int8-b1-t1.")],
    as_json: Json = False,
) -> None:
    """What a target of this machine is like, from ten seconds of small models run on it."""
    from hwnas.deploy.device import Target
    from hwnas.predictors.fingerprint import fingerprint
    from hwnas.terminal import print_fingerprint

    found = fingerprint(Target.parse(target))
    if as_json:
        print_json({**asdict(found), "machine": asdict(found.machine())})
    else:
        print_fingerprint(out, found)


@app.command()
def calibrate(
    target: Annotated[str, typer.Option(help="A target, or a name for a device of your own.")],
    space: Space = None,
    samples: Annotated[int, typer.Option(help="Networks that shall be known of it.")] = 10,
    until_error: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Stop when as sure as this, e.g. 5%.")
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="A CSV file of costs measured elsewhere.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write networks to measure elsewhere into this folder.")
    ] = None,
    energy: Annotated[
        bool, typer.Option("--energy", help="Measure energy, where the hardware counts it.")
    ] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Measure peak memory, in fresh processes.")
    ] = False,
    gemm: Annotated[
        bool, typer.Option("--gemm", help="Time matrix products in the place of networks.")
    ] = False,
    runtime: Annotated[
        str, typer.Option(help="With --from: what ran the networks, e.g. litert-2.3.")
    ] = "",
    trust_units: Annotated[
        bool,
        typer.Option("--trust-units", help="With --from: costs far from all others are meant."),
    ] = False,
    preset: Preset = None,
    image: Image = "64x64x3",
    classes: Classes = 100,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Make a device known, from a few well-chosen networks measured on it."""
    from hwnas.cli.device_tables import print_export
    from hwnas.predictors.calibration import export_chosen

    kept = _store(store)
    if sum((from_ is not None, export is not None, energy, memory, gemm)) > 1:
        raise ConfigError("give one of --from, --export, --energy, --memory and --gemm")
    if gemm:
        _calibrate_gemms(target, kept, as_json)
        return
    networks = None if space is None else _space(space, preset, image, classes)
    if from_ is not None:
        _adopt(target, from_, networks, kept, runtime, trust_units, as_json)
    elif networks is None:
        raise ConfigError("give --space, whose networks are measured, or --from a CSV file")
    elif export is not None:
        print_export(out, export_chosen(target, networks, kept, export, samples), target)
    elif memory:
        _calibrate_memory(target, networks, samples, kept, as_json)
    else:
        _calibrate_networks(target, networks, samples, until_error, energy, kept, as_json)


def _adopt(
    device: str,
    table: Path,
    space: SearchSpace | None,
    store: DeviceStore,
    runtime: str,
    trust_units: bool,
    as_json: bool,
) -> None:
    from hwnas.predictors.adoption import adopt
    from hwnas.predictors.cost_file import read_cost_file

    found = read_cost_file(table, space)
    for note in found.notes:
        out.print(f"note: {note}", soft_wrap=True, markup=False)
    _show_calibrated(adopt(device, found, store, runtime, trust_units), store, as_json)


def _calibrate_networks(
    target: str,
    space: SearchSpace,
    samples: int,
    until_error: str | None,
    energy: bool,
    store: DeviceStore,
    as_json: bool,
) -> None:
    from hwnas.cli.device_tables import print_reading
    from hwnas.deploy.device import Target
    from hwnas.predictors.calibration import MeasuredMetric, calibrate

    def show(reading: Reading) -> None:
        if not as_json:
            print_reading(out, reading)

    parsed, sure = Target.parse(target), _fraction(until_error)
    metric: MeasuredMetric = "energy_mj" if energy else "latency_ms"
    profile = calibrate(parsed, space, store, samples, sure, show, metric=metric)
    _show_calibrated([profile], store, as_json)


def _show_calibrated(profiles: list[DeviceProfile], store: DeviceStore, as_json: bool) -> None:
    from hwnas.cli.device_tables import print_calibrated

    if as_json:
        print_json([profile.description() for profile in profiles])
        return
    print_calibrated(out, profiles, store)


def _calibrate_gemms(target: str, store: DeviceStore, as_json: bool) -> None:
    from hwnas.deploy.device import Target
    from hwnas.predictors.gemm_profile import calibrate_gemms

    profile = calibrate_gemms(Target.parse(target), store)
    if as_json:
        print_json(asdict(profile))
        return
    out.print(f"{target}: {len(profile.gemms)} products; kept in {store.folder}", soft_wrap=True)
    out.print(f"next: hwnas predict gemm --m 64 --n 256 --k 128 --target {target}", soft_wrap=True)


def _calibrate_memory(
    target: str, space: SearchSpace, samples: int, store: DeviceStore, as_json: bool
) -> None:
    from hwnas.deploy.device import Target
    from hwnas.predictors.memory_profile import calibrate_memory

    def show(network: str, peak_bytes: int, number: int) -> None:
        if not as_json:
            out.print(f"{number:3d}  {network}  measured {peak_bytes / 1e6:.4g} MB", soft_wrap=True)

    profile = calibrate_memory(Target.parse(target), space, store, samples, show)
    if as_json:
        print_json(asdict(profile))
        return
    known = len(profile.networks)
    out.print(f"{target}: peak memory of {known} networks; kept in {store.folder}", soft_wrap=True)
    out.print(f"next: hwnas predict model.onnx --target {target}", soft_wrap=True)


@app.command()
def predict(
    target: Targets,
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL.onnx|gemm", help="Any ONNX file, or a matrix product."),
    ] = None,
    space: Space = None,
    arch: Annotated[Path | None, typer.Option(help="JSON file of an architecture.")] = None,
    preset: Preset = None,
    image: Image = "64x64x3",
    classes: Classes = 100,
    input_shape: Input = None,
    m: Annotated[int | None, typer.Option("--m", help="Of a gemm: rows of the product.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Of a gemm: columns of the product.")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Of a gemm: what is summed over.")] = None,
    from_fingerprint: Annotated[
        bool,
        typer.Option("--fingerprint", help="From ten seconds of small models run on the target."),
    ] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """What a network costs on known devices, with a 90% interval; nothing is run."""
    from hwnas.cli.device_tables import print_predictions
    from hwnas.deploy.device import Target
    from hwnas.predictors.fingerprint import fingerprint as fingerprint_of
    from hwnas.predictors.memory_profile import has_memory, predict_memory
    from hwnas.predictors.prediction import predict, predict_from_fingerprint

    kept = _store(store)
    if model == Path("gemm"):
        found = _predict_gemm(kept, target, m, n, k)
    else:
        network, at_batch = _network(model, space, arch, preset, image, classes, input_shape)
        if from_fingerprint:
            prints = [fingerprint_of(Target.parse(name)) for name in target]
            found = [predict_from_fingerprint(each, network) for each in prints]
        else:
            found = predict(kept, target, network)
        measured = [name for name in dict.fromkeys(target) if has_memory(kept, name)]
        found += [predict_memory(kept, name, at_batch) for name in measured]
    if as_json:
        print_json([each.to_json() for each in found])
        return
    print_predictions(out, found)


def _predict_gemm(
    store: DeviceStore, targets: list[str], m: int | None, n: int | None, k: int | None
) -> list[Prediction]:
    from hwnas.predictors.gemm import Gemm
    from hwnas.predictors.gemm_profile import predict_gemm

    if m is None or n is None or k is None:
        raise ConfigError("a gemm needs its sizes: --m, --n and --k")
    return [predict_gemm(store, target, Gemm(m, n, k)) for target in targets]


@app.command()
def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Any ONNX file.")],
    target: Annotated[str, typer.Option(help="A known target or device.")],
    top: Annotated[int, typer.Option(min=1, help="How many operators.")] = 10,
    input_shape: Input = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """The costliest operators of a network, predicted beside profiled."""
    from hwnas.cli.device_tables import print_operators
    from hwnas.deploy.onnx_workload import read_workload
    from hwnas.predictors.device import DevicePredictor
    from hwnas.predictors.explain import explain, profiled

    network = read_workload(model, input_shape=_sizes(input_shape, "--input"))
    predictor = DevicePredictor.load(_store(store), target)
    kernels, reason = profiled(model, target)
    costs = explain(predictor, network, kernels)
    if as_json:
        print_json([asdict(each) for each in costs[:top]])
        return
    profiled_ms = None if kernels is None else sum(kernels.values())
    print_operators(out, costs, top, target, profiled_ms, reason)


devices_app = typer.Typer()
app.add_typer(devices_app, name="devices")


@devices_app.callback(invoke_without_command=True)
def devices(
    context: typer.Context,
    show: Annotated[
        str | None, typer.Option(help="A known device: what it was calibrated on.")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Targets that can be used, and devices that costs can be predicted for."""
    if context.invoked_subcommand is not None:
        return
    from hwnas.cli.device_tables import print_known_devices, print_targets
    from hwnas.deploy.catalogue import devices
    from hwnas.predictors.prediction import known_devices

    kept = _store(store)
    if show is not None:
        _show(show, kept, as_json)
        return
    targets, known = devices(), known_devices(kept)
    if as_json:
        print_json(
            {
                "targets": [asdict(each) for each in targets],
                "known": [each.to_json() for each in known],
            }
        )
        return
    print_targets(out, targets)
    print_known_devices(out, known)


def _show(name: str, store: DeviceStore, as_json: bool) -> None:
    from hwnas.cli.device_tables import print_known_device
    from hwnas.predictors.device import DevicePredictor
    from hwnas.predictors.prediction import known_devices

    known = [each for each in known_devices(store) if each.profile.device == name]
    if not known:
        store.load(name)  # says which one is meant
    for each in known:
        predictor = DevicePredictor.of_known(each.profile, shipped=each.origin == "shipped")
        foretold = predictor.held_out() if each.origin == "store" else []
        if as_json:
            costs = zip(each.profile.networks, each.profile.costs.tolist(), strict=True)
            print_json({**each.to_json(), "networks": dict(costs)})
        else:
            print_known_device(out, each, foretold)


def _store(folder: Path | None) -> DeviceStore:
    from hwnas.predictors.store import DeviceStore

    return DeviceStore.default() if folder is None else DeviceStore(folder)


def _space(text: str, preset: str | None, image: str, classes: int) -> SearchSpace:
    from hwnas.search_spaces import SPACES
    from hwnas.search_spaces.catalogue import named_space

    if text not in SPACES and Path(text).exists():
        from hwnas.experiment import space_of

        return space_of(Path(text))
    height, width, channels = _image(image)
    options = {} if preset is None else {"preset": preset}
    found: SearchSpace = named_space(text, (height, width, channels), classes, options)
    return found


def _network(
    model: Path | None,
    space: str | None,
    arch: Path | None,
    preset: str | None,
    image: str,
    classes: int,
    input_shape: str | None,
) -> tuple[OnnxWorkload | StepTable, Callable[[int], Workload]]:
    """What was asked about, and the same at any batch."""
    from hwnas.deploy.onnx_workload import read_workload
    from hwnas.predictors.cost_file import read_architecture
    from hwnas.search_spaces import StepTable

    if model is not None and space is None and arch is None:
        sizes = _sizes(input_shape, "--input")
        file = read_workload(model, input_shape=sizes)
        return file, lambda batch: read_workload(model, batch, sizes).workload
    if model is not None or space is None or arch is None:
        raise ConfigError("give either MODEL.onnx, or --space and --arch")
    made = _space(space, preset, image, classes)
    architecture = made.check(read_architecture(Path(), str(arch)))
    steps = StepTable.of_workloads([made.workload(architecture)])
    return steps, lambda batch: made.workload(architecture, batch)


def _image(text: str) -> tuple[int, int, int]:
    sizes = _sizes(text, "--image")
    if sizes is None or len(sizes) != 3:
        raise ConfigError(f"--image is {text!r}; expected height x width x channels, e.g. 64x64x3")
    return sizes[0], sizes[1], sizes[2]


def _sizes(text: str | None, option: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"{option} is {text!r}; expected sizes such as 3x224x224")
    return tuple(map(int, parts))


def _fraction(text: str | None) -> float | None:
    """``5%`` and ``0.05`` are the same."""
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise ConfigError(f"--until-error is {text!r}; expected something like 5%")
    return value
