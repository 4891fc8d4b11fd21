"""Early exits in ONNX files: outputs, the part that is skipped, and files without a branch."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from hwnas.deploy import RUNTIMES, Device, Target, export_onnx
from hwnas.deploy.export.to_onnx import export_traced
from hwnas.deploy.measurement.profiling import profile_kernels
from hwnas.deploy.onnx.early_exit import (
    early_exit_of,
    refuse_early_exit,
    unconditional,
    write_paths,
)
from hwnas.deploy.onnx.graph import messages
from hwnas.deploy.onnx.workload import read_workload
from hwnas.deploy.runtimes import open_session
from hwnas.errors import ArtifactError
from hwnas.search_spaces import mobilenet, resnet, vit
from hwnas.search_spaces.early_exit import EarlyExitNetwork, EarlyExitSpace, EarlyExitWorkload
from hwnas.search_spaces.early_exit.workload import early_exit_workload

TARGET = Target(Device("cpu", "onnxruntime"))
SHAPE = (12, 12, 1)
SPACES = {
    "resnet": EarlyExitSpace(resnet(SHAPE, 10, preset="tiny", resolution=(12,))),
    "mobilenet": EarlyExitSpace(mobilenet(SHAPE, 10, preset="tiny", resolution=(12,))),
    "vit": EarlyExitSpace(vit(SHAPE, 10, preset="tiny", depth=(3,), resolution=(12,))),
}


Exported = tuple[Path, EarlyExitNetwork, NDArray[np.float32]]


def fitted(name: str) -> tuple[EarlyExitNetwork, NDArray[np.float32]]:
    """Return a network half of whose images leave, and these images."""
    space, rng = SPACES[name], random.Random(0)
    while not (architecture := space.sample(rng)).as_dict()["exit_share"]:
        pass
    torch.manual_seed(0)
    network = space.build(architecture).eval()
    images = torch.randn(40, *space.input_shape(architecture))
    assert network.head is not None
    network.head.share = 0.5
    with torch.no_grad():
        network.head.fit(network.paths(images)[2])
    return network, images.numpy()


@pytest.fixture(scope="module", params=SPACES)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    network, images = fitted(request.param)
    path = tmp_path_factory.mktemp(request.param) / "network.onnx"
    export_onnx(network, images.shape[1:], path)  # type: ignore[arg-type]
    return path, network, images


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in messages(onnx.load(path), "NodeProto"))


@pytest.mark.slow
def test_file_gives_the_outputs_of_the_network_whoever_leaves(exported: Exported) -> None:
    path, network, images = exported
    with torch.no_grad():
        expected = network(torch.from_numpy(images)).numpy()
    session = open_session(path, TARGET)
    np.testing.assert_allclose(session.run(images), expected, atol=1e-5)
    for image, known in zip(images, expected, strict=True):
        np.testing.assert_allclose(session.run(image[None])[0], known, atol=1e-5)
    found = early_exit_of(path)
    assert found is not None
    assert found.share == 0.5
    assert found.share_of_batches(3) == 0.125


@pytest.mark.slow
def test_rest_of_the_network_runs_only_for_images_that_stay(
    exported: Exported, tmp_path: Path
) -> None:
    path, *_ = exported
    early, whole = write_paths(path, tmp_path)
    ran = [len(profile_kernels(file, TARGET)) for file in (early, whole)]
    assert ran[0] < 0.8 * ran[1]


@pytest.mark.slow
def test_paths_give_the_outputs_of_the_exit_and_of_the_end(
    exported: Exported, tmp_path: Path
) -> None:
    path, network, images = exported
    with torch.no_grad():
        batch = torch.from_numpy(images)
        wanted = network.paths(batch)[1].numpy(), network.network(batch).numpy()
    for file, known in zip(write_paths(path, tmp_path), wanted, strict=True):
        np.testing.assert_allclose(open_session(file, TARGET).run(images), known, atol=1e-5)


@pytest.mark.slow
def test_file_without_the_branch_gives_the_same_outputs(exported: Exported, tmp_path: Path) -> None:
    path, _, images = exported
    whole = unconditional(path, tmp_path)
    assert "If" in operators(path)
    assert "If" not in operators(whole)
    onnx.checker.check_model(whole, full_check=True)
    expected = open_session(path, TARGET).run(images)
    np.testing.assert_allclose(open_session(whole, TARGET).run(images), expected, atol=1e-6)
    assert unconditional(whole, tmp_path) == whole


@pytest.mark.slow
def test_workload_of_the_file_is_that_of_the_network(exported: Exported) -> None:
    path, network, images = exported
    found = read_workload(path)
    assert not found.unknown
    assert isinstance(found.workload, EarlyExitWorkload)
    known = early_exit_workload(network, images.shape[1:])  # type: ignore[arg-type]
    assert isinstance(known, EarlyExitWorkload)
    assert found.workload.macs == pytest.approx(known.macs, rel=0.01)
    assert found.workload.until_exit.macs == pytest.approx(known.until_exit.macs, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["openvino", "pytorch", "onnxruntime"])
def test_other_runtimes_and_formats_compute_the_whole_network(
    name: str, exported: Exported
) -> None:
    if reason := RUNTIMES[name].unavailable():
        pytest.skip(reason)
    path, network, images = exported
    number_format = "fp16" if name == "onnxruntime" else "fp32"
    target = Target.parse(f"cpu-{name}-{number_format}-b{len(images)}-t1")
    found = open_session(path, target).run(images)
    with torch.no_grad():
        expected = network(torch.from_numpy(images)).numpy()
    close = np.isclose(found, expected, atol=0.05 * np.abs(expected).max()).all(1)
    assert close.mean() > 0.9  # half precision may move an image across the threshold


@pytest.mark.slow
def test_quickly_exported_file_has_the_same_operators(exported: Exported, tmp_path: Path) -> None:
    path, network, images = exported
    export_traced(network, images.shape[1:], tmp_path / "traced.onnx")  # type: ignore[arg-type]
    assert early_exit_of(tmp_path / "traced.onnx") is not None
    found = open_session(tmp_path / "traced.onnx", TARGET).run(images)
    np.testing.assert_allclose(found, open_session(path, TARGET).run(images), atol=1e-5)


def test_file_without_an_exit_has_none(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    space = SPACES["resnet"]
    export_traced(space.build(space.largest()), space.input_shape(space.largest()), path)
    assert early_exit_of(path) is None
    assert unconditional(path, tmp_path) == path
    refuse_early_exit(path, "nothing", "nothing")
    with pytest.raises(ArtifactError, match="has no early exit"):
        write_paths(path, tmp_path)


def test_file_with_an_exit_is_refused_where_no_part_may_be_skipped(tmp_path: Path) -> None:
    network, images = fitted("resnet")
    path = tmp_path / "network.onnx"
    export_traced(network, images.shape[1:], path)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match=r"sweeps .*, but .* has an early exit.*; do this"):
        refuse_early_exit(path, "sweeps take plain networks", "do this")
    model = onnx.load(path)
    model.metadata_props[0].value = "{"
    onnx.save(model, path)
    with pytest.raises(ArtifactError, match="note on the early exit is damaged"):
        early_exit_of(path)
