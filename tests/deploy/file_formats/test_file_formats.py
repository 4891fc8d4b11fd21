"""The conformance suite of file formats. A new format gets all checks; those not installed skip."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from hwnas.deploy import Bundle, BundleFacts, BundleNetwork, Export, write_bundle
from hwnas.deploy.bundles.converting import convert_bundle
from hwnas.deploy.file_formats.compressed_onnx import CompressedOnnx
from hwnas.deploy.file_formats.converted_file import ConvertedFile
from hwnas.deploy.file_formats.file_format import FileFormat, SourceNetwork
from hwnas.deploy.file_formats.older_onnx import OlderOnnx
from hwnas.deploy.file_formats.pixel_onnx import PixelOnnx
from hwnas.deploy.file_formats.quality_check import QualityCheck
from hwnas.deploy.file_formats.registry import FILE_FORMATS
from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.runtimes.runtime import Computation
from hwnas.deploy.runtimes.session import ArraySession
from hwnas.deploy.variants.quality import Quality
from hwnas.errors import ArtifactError, ConfigError

Command = Callable[..., Any]
SMALLER = ("mnn-fp16", "mnn-w8", "openvino-fp16")
"""Formats that round the weights."""


@pytest.fixture(params=list(FILE_FORMATS))
def name(request: pytest.FixtureRequest) -> str:
    if (reason := FILE_FORMATS[request.param].unavailable()) is not None:
        pytest.skip(reason)
    return str(request.param)


@pytest.fixture
def form(name: str) -> FileFormat:
    return FILE_FORMATS[name]


@pytest.fixture
def source(
    form: FileFormat, exported: Export, int8: Path, preprocessing: Preprocessing
) -> SourceNetwork:
    outputs = OutputMeaning("class_scores", tuple("0123456789"))
    model = int8 if form.number_format == "int8" else exported.path
    return SourceNetwork(model, preprocessing, outputs)


@pytest.fixture
def bundle(packed: Bundle, tmp_path: Path) -> Bundle:
    return Bundle.load(Path(shutil.copytree(packed.folder, tmp_path / "bundle")))


@pytest.mark.parametrize("batch", [1, 3])
def test_converted_file_gives_the_outputs_of_the_network(
    name: str,
    form: FileFormat,
    batch: int,
    source: SourceNetwork,
    digits: NDArray[np.uint8],
    tmp_path: Path,
) -> None:
    from hwnas.deploy import Target
    from hwnas.deploy.runtimes import open_session

    to = tmp_path / f"network{form.suffix}"
    form.convert(replace(source, batch=batch), to)
    assert to.exists()
    if (reason := form.cannot_run()) is not None:
        pytest.skip(reason)
    session = form.load(to, batch)
    images = source.preprocessing(digits[:7]).contiguous().numpy()
    target = Target.parse(f"cpu-onnxruntime-{form.number_format}-b1-t1")
    expected = open_session(source.model, target).run(images)
    inputs: Any = digits[:7] if form.takes_pixels else images
    assert session.input_shape == inputs.shape[1:]
    tolerance = 0.05 if name in SMALLER or form.number_format == "int8" else 1e-4
    largest = np.abs(expected).max()
    np.testing.assert_allclose(session.run(inputs), expected, atol=tolerance * largest)
    if form.number_format == "fp32":
        assert (np.abs(session.run(inputs) - expected).max() > 1e-6 * largest) == (name in SMALLER)


def test_damaged_files_are_refused_in_one_line(
    form: FileFormat, source: SourceNetwork, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(source.model.read_bytes()[:-200])
    with pytest.raises(ArtifactError) as told:
        form.convert(replace(source, model=damaged), tmp_path / f"network{form.suffix}")
    assert "\n" not in str(told.value)
    if form.cannot_run() is None:
        file = tmp_path / f"cut{form.suffix}"
        file.write_bytes(b"nothing")
        with pytest.raises(ArtifactError) as told:
            form.load(file, 1)
        assert "\n" not in str(told.value)


def test_operator_that_no_converter_knows_is_named(
    form: FileFormat, source: SourceNetwork, tmp_path: Path
) -> None:
    if isinstance(form, CompressedOnnx | OlderOnnx | PixelOnnx):
        pytest.skip("it leaves the operators as they are")
    node = helper.make_node("Weird", ["x"], ["y"], domain="some.where", name="stem/weird")
    sizes = ["n", 1, 8, 8]
    graph = helper.make_graph(
        [node],
        "odd",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("some.where", 1)]
    path = tmp_path / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    with pytest.raises(ArtifactError, match="Weird"):
        form.convert(replace(source, model=path), tmp_path / f"odd{form.suffix}")


def test_bundle_keeps_and_verifies_the_converted_files(name: str, bundle: Bundle) -> None:
    before = bundle.predict(bundle.golden()["images"])
    (made,) = convert_bundle(bundle, [name]).converted
    opened = Bundle.load(bundle.folder)
    assert opened.converted == [made]
    assert made.golden in opened.golden()
    assert made.format == name
    assert {each for each in made.files} <= set(opened.files)
    assert made.versions["hwnas"]
    assert (made.difference is None) == (made.not_run is not None)
    checks = {check.name: check for check in opened.verify()}
    assert checks[f"{made.main} ({name})"].ok
    assert (opened.predict(opened.golden()["images"]) == before).all()
    assert f"| {made.main} | {name} |" in (bundle.folder / "README.md").read_text()
    (bundle.folder / made.files[0]).write_bytes(b"changed")
    assert not all(check.ok for check in opened.checks())


@pytest.mark.parametrize("size", [6, 13])
def test_files_take_pixels_of_the_network_s_size_where_images_have_another(
    size: int,
    to_pack: BundleNetwork,
    facts: BundleFacts,
    digits: NDArray[np.uint8],
    tmp_path: Path,
) -> None:
    images = Preprocessing(size, size, 1, (0.0,), (1.0,)).pixels(digits[:5])
    bundle = write_bundle(tmp_path / "bundle", replace(to_pack, golden_images=images), facts)
    (made,) = convert_bundle(bundle, ["onnx-pixels"]).converted
    assert made.difference is not None
    assert made.difference < 0.02  # from rounding the pixels
    assert all(check.ok for check in Bundle.load(bundle.folder).verify())


def test_second_conversion_replaces_the_first_and_keeps_others(bundle: Bundle) -> None:
    opened = convert_bundle(convert_bundle(bundle, ["openvino", "torch"]), ["torch"], batch=2)
    assert [(each.format, each.batch) for each in opened.converted] == [
        ("openvino", 1),
        ("torch", 2),
    ]
    assert {"model.xml", "model.bin", "model.pt2"} <= {p.name for p in bundle.folder.iterdir()}
    assert all(check.ok for check in opened.verify())


class Wrong:
    """Format whose files compute something else."""

    suffix = ".wrong"
    packages = ("numpy",)
    takes_pixels = False
    number_format = "fp32"
    is_program = False

    def unavailable(self) -> str | None:
        return None

    def cannot_run(self) -> str | None:
        return None

    def convert(self, network: SourceNetwork, to: Path) -> dict[str, int]:
        to.write_text("wrong")
        return {}

    def load(self, file: Path, batch: int) -> ArraySession:
        return ArraySession(file, lambda x: np.ones((len(x), 10), np.float32), (1, 8, 8), 1, {})


def test_conversion_with_other_outputs_leaves_the_bundle_alone(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.registry import Plugin

    monkeypatch.setitem(FILE_FORMATS._shipped, "wrong", Plugin("file format", "wrong", Wrong()))
    with pytest.raises(ArtifactError, match=r"outputs that differ by .*, so nothing was written"):
        convert_bundle(bundle, ["torch", "wrong"])
    assert Bundle.load(bundle.folder).converted == []
    assert all(check.ok for check in bundle.verify())


@dataclass(frozen=True)
class LosesThreePoints:
    """Evaluator to which every file loses .03 of its accuracy."""

    images: NDArray[np.uint8]
    preprocessing: Preprocessing

    def metrics(self, session: Computation, takes_pixels: bool = False) -> NDArray[Any]:
        images: Any = self.images
        inputs = images if takes_pixels else self.preprocessing(images).contiguous().numpy()
        return session.run(inputs)

    def compare(self, own: NDArray[Any], full: NDArray[Any]) -> tuple[Quality, ...]:
        np.testing.assert_allclose(own, full, rtol=1e-3, atol=1e-3)
        return (Quality("accuracy", "maximize", 0.9, 0.01, 0.03, 0.01, "fraction", 40, "test"),)


@pytest.mark.parametrize("name", ["openvino", "onnx-pixels"])
def test_conversion_that_loses_too_much_leaves_the_bundle_alone(
    name: str, bundle: Bundle, digits: NDArray[np.uint8]
) -> None:
    evaluator = LosesThreePoints(digits, bundle.preprocessing)
    check = QualityCheck(evaluator, bundle.onnx_file, max_loss=0.02)
    told = rf"model.onnx converted to {name} loses 0.03 in accuracy on 40 test images; at most 0.02"
    with pytest.raises(ArtifactError, match=told):
        convert_bundle(bundle, [name], check=check)
    assert Bundle.load(bundle.folder).converted == []
    allowed = replace(check, max_loss=0.03)
    (made,) = convert_bundle(bundle, [name], check=allowed).converted
    assert made.quality is not None
    assert made.quality.loss == 0.03
    assert Bundle.load(bundle.folder).converted == [made]
    card = (bundle.folder / "README.md").read_text()
    assert "| accuracy (evaluated) | loss |" in card
    assert "| 0.9000 | 0.0300 (" in card
    assert all(each.ok for each in Bundle.load(bundle.folder).verify())


def test_file_of_an_unknown_format_is_kept_unchecked(bundle: Bundle) -> None:
    """A bundle may come from a machine with another plug-in."""
    made = ConvertedFile("strange", ("model.strange",), "model.strange", "model.onnx")
    golden = bundle.golden_numbers()
    assert "there is no format 'strange'" in made.check(bundle.folder, golden)
    assert ConvertedFile.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_convert_command_adds_and_prints_files(hwnas: Command, bundle: Bundle) -> None:
    answer = hwnas("convert", bundle.folder, "--to", "torch", "--to", "openvino")
    assert answer.status == 0, answer.err
    lines = answer.out.splitlines()
    assert [Path(line.split(": ")[0]).name for line in lines] == ["model.pt2", "model.xml"]
    assert all("outputs agree within" in line for line in lines)
    (made,) = json.loads(hwnas("convert", bundle.folder, "--to", "torch", "--json").out)
    assert made["format"] == "torch"
    assert "model.pt2 (torch)" in hwnas("verify", bundle.folder).out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--to", "torhc"], "unknown file format 'torhc'; did you mean 'torch'"),
        (["--to", "torch", "--batch", "0"], "the batch is 0; expected at least 1"),
        ([], "--to"),
    ],
)
def test_convert_command_refuses_wrong_options(
    hwnas: Command, bundle: Bundle, options: list[str], told: str
) -> None:
    hwnas("convert", bundle.folder, *options).refused(told)
    assert Bundle.load(bundle.folder).converted == []


def test_convert_command_refuses_what_is_no_bundle_or_cannot_be_converted_here(
    hwnas: Command, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hwnas("convert", tmp_path, "--to", "torch").refused("is not a bundle")
    monkeypatch.setattr(Wrong, "unavailable", lambda self: "it is not installed")
    from hwnas.registry import Plugin

    monkeypatch.setitem(FILE_FORMATS._shipped, "wrong", Plugin("file format", "wrong", Wrong()))
    hwnas("convert", bundle.folder, "--to", "wrong").refused("converted to wrong here: it is not")
    with pytest.raises(ConfigError):
        convert_bundle(bundle, ["wrong"])


def test_onnx_file_in_an_older_opset_uses_no_newer_one(bundle: Bundle) -> None:
    (made,) = convert_bundle(bundle, ["onnx-opset17"]).converted
    model = onnx.load(bundle.folder / made.main)
    assert [each.version for each in model.opset_import if not each.domain] == [17]
    assert model.ir_version <= 8, "that of the release with this opset"


def test_operator_without_an_older_form_is_refused_in_one_line(
    source: SourceNetwork, tmp_path: Path
) -> None:
    node = helper.make_node("Gelu", ["x"], ["y"])
    sizes = ["n", 1, 8, 8]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes) for n in "xy"]
    graph = helper.make_graph([node], "new", values[:1], values[1:])
    path = tmp_path / "new.onnx"
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    with pytest.raises(ArtifactError, match=r"in opset 17 instead .* older form: Gelu") as e:
        FILE_FORMATS["onnx-opset17"].convert(replace(source, model=path), tmp_path / "o.onnx")
    assert "\n" not in str(e.value)


def test_compressed_file_gives_the_onnx_file_back_bit_for_bit(bundle: Bundle) -> None:
    (made,) = convert_bundle(bundle, ["onnx-xz"]).converted
    packed, plain = (bundle.folder / made.main).read_bytes(), bundle.onnx_file.read_bytes()
    assert lzma.decompress(packed) == plain
    assert made.sizes == {"file_bytes": len(packed), "unpacked_bytes": len(plain)}
    assert made.difference == 0
    floats = np.random.default_rng(0).normal(size=2**14).astype(np.float32)
    tensor = onnx.numpy_helper.from_array(floats, "weights")
    node = helper.make_node("Add", ["x", "weights"], ["y"])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2**14]) for n in "xy"]
    graph = helper.make_graph([node], "weights", values[:1], values[1:], [tensor])
    model = bundle.folder.parent / "weights.onnx"
    onnx.save(helper.make_model(graph), model)
    source = SourceNetwork(model, bundle.preprocessing, bundle.outputs)
    sizes = FILE_FORMATS["onnx-xz"].convert(source, model.with_suffix(".xz"))
    assert sizes["file_bytes"] < 0.88 * sizes["unpacked_bytes"]


def test_compressed_file_holds_the_weights_of_other_files(bundle: Bundle, tmp_path: Path) -> None:
    apart = tmp_path / "apart.onnx"
    onnx.save(onnx.load(bundle.onnx_file), apart, save_as_external_data=True, size_threshold=0)
    source = SourceNetwork(apart, bundle.preprocessing, bundle.outputs)
    form, to = FILE_FORMATS["onnx-xz"], tmp_path / "whole.xz"
    form.convert(source, to)
    golden = bundle.golden_numbers()
    assert golden.difference(form.load(to, 1), form.takes_pixels) == 0


@pytest.mark.parametrize("change", [lambda data: data[:-9], lambda data: lzma.compress(b"")])
def test_damaged_compressed_file_is_refused(
    change: Callable[[bytes], bytes], bundle: Bundle, tmp_path: Path
) -> None:
    (made,) = convert_bundle(bundle, ["onnx-xz"]).converted
    damaged = tmp_path / "damaged.xz"
    damaged.write_bytes(change((bundle.folder / made.main).read_bytes()))
    with pytest.raises(ArtifactError) as told:
        FILE_FORMATS["onnx-xz"].load(damaged, 1)
    assert "\n" not in str(told.value)


def test_compressed_file_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.deploy.file_formats.compressed_onnx._MOST_BYTES", 2**20)
    bomb = tmp_path / "bomb.xz"
    bomb.write_bytes(lzma.compress(bytes(2**21)))
    with pytest.raises(ArtifactError, match="larger than an ONNX file can be"):
        FILE_FORMATS["onnx-xz"].load(bomb, 1)


def test_onnx_file_that_takes_pixels_has_the_labels_in_its_metadata(bundle: Bundle) -> None:
    (made,) = convert_bundle(bundle, ["onnx-pixels"]).converted
    model = onnx.load(bundle.folder / made.main)
    onnx.checker.check_model(model, full_check=True)
    metadata = {each.key: json.loads(each.value) for each in model.metadata_props}
    assert metadata["labels"] == list("0123456789")
    assert OutputMeaning.from_json(metadata["outputs"]) == bundle.outputs
