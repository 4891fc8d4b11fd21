"""Commands that predict the cost of networks, and of their operators, on known devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hwnas.cli.app import DEVICES, Json, app, out, print_json
from hwnas.cli.devices.options import (
    Classes,
    Image,
    Input,
    Preset,
    Space,
    Store,
    sizes_of,
    space_of,
    store_of,
)
from hwnas.errors import ConfigError

if TYPE_CHECKING:
    from hwnas.deploy.onnx.workload import OnnxWorkload
    from hwnas.predictors.devices.prediction import Prediction
    from hwnas.predictors.devices.store import DeviceStore
    from hwnas.search_spaces import OperatorCountTable, Workload


@app.command(rich_help_panel=DEVICES)
def predict(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL.onnx|gemm", help="Any ONNX file, or a matrix product"),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Target, e.g. cpu-onnxruntime-fp32-b1-t1; may be repeated"),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(help="TOML file with the spec sheet of a device that nobody has measured"),
    ] = None,
    example_spec: Annotated[
        bool, typer.Option("--example-spec", help="Print an example of a file for --spec")
    ] = False,
    space: Space = None,
    arch: Annotated[Path | None, typer.Option(help="JSON file of an architecture")] = None,
    preset: Preset = None,
    image: Image = "64x64x3",
    classes: Classes = 100,
    input_shape: Input = None,
    m: Annotated[int | None, typer.Option("--m", help="Rows of the product, for gemm")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Columns of the product, for gemm")] = None,
    k: Annotated[int | None, typer.Option("--k", help="Length of the sums, for gemm")] = None,
    tile: Annotated[
        str | None,
        typer.Option(
            metavar="MxNxKxWARPSxSTAGES",
            help="Tile of the product on a target of triton, for gemm; the fastest if not given",
        ),
    ] = None,
    from_fingerprint: Annotated[
        bool,
        typer.Option(
            "--fingerprint", help="Predict from small models that run on the target for ten seconds"
        ),
    ] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Predict the cost of a network on a device, with a 90% interval, without running it."""
    from hwnas.api.devices import predictions
    from hwnas.cli.devices.tables import print_predictions
    from hwnas.predictors.devices.spec_sheet import EXAMPLE, read_spec

    if example_spec:
        print(EXAMPLE, end="")
        return
    kept, targets = store_of(store), target or []
    if not targets and spec is None:
        raise ConfigError("give --target with a known target, or --spec with a spec sheet")
    if model != Path("gemm") and (m, n, k, tile) != (None, None, None, None):
        raise ConfigError("--m, --n, --k and --tile describe a matrix product; add gemm")
    sheet = None if spec is None else read_spec(spec)
    if model == Path("gemm"):
        if sheet is not None:
            raise ConfigError("--spec does not predict a gemm; give --target, or an ONNX file")
        found = _predict_gemm(kept, targets, m, n, k, tile)
    else:
        network, at_batch = _network(model, space, arch, preset, image, classes, input_shape)
        found = predictions(kept, targets, network, at_batch, from_fingerprint, sheet)
    if as_json:
        print_json([each.to_json() for each in found])
        return
    print_predictions(out, found)


def _predict_gemm(
    store: DeviceStore,
    targets: list[str],
    m: int | None,
    n: int | None,
    k: int | None,
    tile: str | None,
) -> list[Prediction]:
    from hwnas.api.devices import predict_gemm

    if m is None or n is None or k is None:
        raise ConfigError("a gemm needs its sizes: --m, --n and --k")
    return predict_gemm(m, n, k, targets, tile=tile or None, store=store.folder)


def _network(
    model: Path | None,
    space: str | None,
    arch: Path | None,
    preset: str | None,
    image: str,
    classes: int,
    input_shape: str | None,
) -> tuple[OnnxWorkload | OperatorCountTable, Callable[[int], Workload]]:
    """Return the network in question, and a function that gives its workload at any batch size."""
    from hwnas.deploy.onnx.workload import read_workload
    from hwnas.predictors.devices.cost_file import read_architecture

    if model is not None and space is None and arch is None:
        sizes = sizes_of(input_shape, "--input")
        file = read_workload(model, input_shape=sizes)
        return file, lambda batch: read_workload(model, batch, sizes).workload
    if model is not None or space is None or arch is None:
        raise ConfigError("give either MODEL.onnx, or --space and --arch")
    made = space_of(space, preset, image, classes)
    architecture = made.check(read_architecture(Path(), str(arch)))
    steps = made.operator_counts([architecture])
    return steps, lambda batch: made.workload(architecture, batch)


@app.command(rich_help_panel=DEVICES)
def explain(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Any ONNX file")],
    target: Annotated[str, typer.Option(help="Known target or device")],
    top: Annotated[int, typer.Option(min=1, help="Number of operators to show")] = 10,
    input_shape: Input = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show the costliest operators of a network, predicted beside profiled."""
    from hwnas.api.devices import explain
    from hwnas.cli.devices.tables import print_operators

    shape = sizes_of(input_shape, "--input")
    found = explain(model, target, input_shape=shape, store=store)
    if as_json:
        print_json([asdict(each) for each in found.operators[:top]])
        return
    print_operators(out, found, top, target)
