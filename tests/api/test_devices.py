"""Prediction, calibration and compression from Python."""

from pathlib import Path

import pytest
from torch import nn

import hwnas
from hwnas.errors import ArtifactError, ConfigError, DataError
from hwnas.predictors import SpecSheet
from hwnas.predictors.devices.spec_sheet import EXAMPLE, stored_spec
from hwnas.predictors.devices.store import DeviceStore
from hwnas.search_spaces import mobilenet

TARGET = "cpu-onnxruntime-fp32-b1-t1"
SPACE = hwnas.spaces.MobileNet(
    stages=(
        hwnas.spaces.Stage(8, depth=(1,)),
        hwnas.spaces.Stage(16, 2, depth=(1, 2), expand_ratio=(2, 4)),
    ),
    resolution=(8,),
    width=(0.5, 1.0),
)
"""Space of twelve networks, since the networks of a calibration are chosen among 200 otherwise."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrate this machine from three networks."""
    folder = tmp_path_factory.mktemp("devices")
    profile = hwnas.calibrate(TARGET, SPACE, 3, image_shape=(8, 8, 1), outputs=10, store=folder)
    assert len(profile.networks) == 3
    return folder


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


@pytest.mark.slow
def test_predictions_of_file_module_and_bundle_agree(
    store: Path, finished: Path, tmp_path: Path
) -> None:
    bundle = hwnas.open(finished).best("fastest").export(tmp_path / "model")
    [of_bundle] = hwnas.predict(bundle, TARGET, store=store)
    [of_file] = hwnas.predict(bundle.onnx_file, [TARGET], store=str(store))
    assert of_bundle == of_file
    lower, upper = of_file.estimate.interval90
    assert 0 < lower < of_file.estimate.mean < upper
    [of_module] = hwnas.predict(network(), TARGET, input_shape=(1, 8, 8), store=store)
    assert of_module.estimate.mean > 0


def test_prediction_of_an_architecture_needs_its_space(store: Path, finished: Path) -> None:
    run = hwnas.open(finished)
    space = run.space
    architecture = space.architecture(run.front[0].architecture)
    [predicted] = hwnas.predict(architecture, TARGET, space=space, store=store)
    assert predicted.samples == 3
    with pytest.raises(ConfigError, match="an architecture needs its space"):
        hwnas.predict(architecture, TARGET, store=store)


def test_explanation_adds_up_to_the_prediction(store: Path, finished: Path) -> None:
    fastest = hwnas.open(finished).best("fastest")
    [predicted] = hwnas.predict(fastest, TARGET, store=store)
    found = hwnas.explain(fastest, TARGET, store=store)
    costs = [each.predicted for each in found.operators]
    assert costs == sorted(costs, reverse=True)
    assert sum(costs) == pytest.approx(predicted.estimate.mean, rel=0.2)
    assert found.profiled_ms is not None
    assert found.profiled_ms > 0
    of_module = hwnas.explain(network(), TARGET, input_shape=(1, 8, 8), store=store)
    assert "linear" in {each.kind for each in of_module.operators}
    with pytest.raises(ConfigError, match="'no-device'"):
        hwnas.explain(fastest, "no-device", store=store)


def test_products_cannot_be_predicted_before_some_are_timed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no matrix products were timed .* --gemm"):
        hwnas.predict_gemm(64, 64, 64, TARGET, store=tmp_path)
    with pytest.raises(ConfigError, match="at least 1"):
        hwnas.predict_gemm(0, 64, 64, [TARGET], store=tmp_path)


@pytest.mark.slow
def test_check_of_a_network_takes_its_budget_as_a_mapping(finished: Path, tmp_path: Path) -> None:
    fastest = hwnas.open(finished).best("fastest")
    limits = {"size_bytes": 1e9, "accuracy": 1.01}
    checks = hwnas.check(fastest, {"target": TARGET, "limits": limits})
    assert {each.name: each.ok for each in checks if each.limit is not None} == {
        "size_bytes": True,
        "accuracy": False,
    }
    file = tmp_path / "budget.toml"
    file.write_text(f'target = "{TARGET}"\n[limits]\nsize_bytes = 10\n')
    [size] = (each for each in hwnas.check(fastest.bundle, file) if each.name == "size_bytes")
    assert not size.ok
    with pytest.raises(ConfigError, match="budget: unknown key 'limit'; did you mean 'limits'"):
        hwnas.check(fastest, {"target": TARGET, "limit": limits})


@pytest.mark.slow
def test_measurements_are_in_the_order_of_the_networks(finished: Path) -> None:
    wide = nn.Sequential(nn.Conv2d(1, 256, 3), nn.ReLU(), nn.Conv2d(256, 256, 3), nn.Flatten())
    narrow, slow = hwnas.measure([network(), wide], TARGET, input_shape=(1, 8, 8))
    assert narrow.headline.p50 < slow.headline.p50
    bundle = hwnas.Bundle.load(finished / str(hwnas.open(finished).finalists[0].bundle))
    [again] = hwnas.measure(bundle, TARGET)
    assert again.target == TARGET


@pytest.mark.slow
def test_calibration_continues_with_more_networks(store: Path) -> None:
    profile = hwnas.calibrate(TARGET, SPACE, 5, image_shape=(8, 8, 1), outputs=10, store=store)
    assert len(profile.networks) == 5


def test_prediction_from_a_spec_sheet_accepts_its_file_or_its_values(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(EXAMPLE)
    networks = mobilenet((8, 8, 1), 10)
    values = SpecSheet("my-board", "mobile", 4, 1.8, 12.8, 1.0, vector_bits=128)
    [[one], [other]] = (
        hwnas.predict(networks.smallest(), spec=spec, space=networks, store=tmp_path)
        for spec in (path, values)
    )
    assert one == other
    assert one.estimate.target == "my-board"
    with pytest.raises(ConfigError, match=r"give target=\.\.\. with known targets, or spec="):
        hwnas.predict(networks.smallest(), space=networks)


@pytest.mark.slow
def test_wrong_arguments_are_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a module needs channels, height and width"):
        hwnas.predict(network(), TARGET, store=store)
    with pytest.raises(ConfigError, match="device 'phone' is not known"):
        hwnas.predict(network(), "phone", input_shape=(1, 8, 8), store=store)
    with pytest.raises(ArtifactError, match="there is no ONNX file"):
        hwnas.predict(tmp_path / "none.onnx", TARGET, store=store)
    with pytest.raises(ConfigError, match="samples is 2; expected at least 3"):
        hwnas.calibrate(TARGET, SPACE, 2, image_shape=(8, 8, 1), outputs=10, store=store)
    with pytest.raises(ConfigError, match="unknown space 'mobilnet'"):
        hwnas.calibrate(TARGET, "mobilnet", store=store)


@pytest.mark.slow
def test_sweep_chooses_among_the_variants_of_a_network_of_a_run(finished: Path) -> None:
    network = hwnas.open(finished).best("fastest")
    found = hwnas.sweep(
        network,
        "cpu-onnxruntime-b1-t1",
        variants=["fp32", "int8"],
        max_loss=1.0,
        reporter=hwnas.SilentReporter(),
    )
    assert found.chosen.variant in ("fp32", "int8")
    assert found.chosen.latency_ms > 0


def test_device_out_of_reach_is_calibrated_from_a_table(tmp_path: Path) -> None:
    kept, sizes = tmp_path / "devices", {"image_shape": (8, 8, 1), "outputs": 10}
    table = hwnas.export_networks("phone", SPACE, tmp_path / "to-measure", 3, store=kept, **sizes)
    header, *lines = table.read_text().splitlines()
    assert header == "network,latency_ms"
    assert len(lines) == 3
    files = [table.parent / line.removesuffix(",") for line in lines]
    assert all(file.is_file() for file in files)
    measured = [f"{line}{0.1 * number}" for number, line in enumerate(lines, start=1)]
    table.write_text("\n".join([header, *measured, f"{lines[0]}0.4"]))
    sheet = tmp_path / "phone.toml"
    sheet.write_text(EXAMPLE)
    with pytest.warns(UserWarning, match=r"2 values of latency_ms from 0\.1 to 0\.4"):
        [profile] = hwnas.calibrate_from_table(
            "phone", table, runtime="litert-2.3", spec=sheet, store=kept
        )
    assert len(profile.networks) == 3
    assert "phone" in [each.profile.device for each in hwnas.known_devices(kept)]
    assert stored_spec(DeviceStore(kept), "phone").name == "phone"
    [predicted] = hwnas.predict(files[2], "phone", store=kept)
    lower, upper = predicted.estimate.interval90
    assert lower < 0.3 < upper
    with pytest.raises(DataError, match="there is no table"):
        hwnas.calibrate_from_table("phone", tmp_path / "nowhere.csv", store=kept)


def test_targets_include_onnx_runtime_on_this_machine() -> None:
    by_name = {each.target: each for each in hwnas.targets()}
    assert by_name["cpu-onnxruntime-fp32-b{B}-t{T}"].usable
