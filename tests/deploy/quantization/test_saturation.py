"""Saturating sums of int8 products on processors without VNNI: warnings and 7-bit weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from hwnas.deploy import Bundle, Device, Export, Target
from hwnas.deploy.bundles.repacking import write_variants
from hwnas.deploy.export.comparison import relative_error
from hwnas.deploy.measurement.measurement import Measurement
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.deploy.quantization.saturation import LARGEST_REDUCED, may_saturate, saturation_warning
from hwnas.deploy.runtimes import open_session
from hwnas.deploy.targets.processor import instruction_flags, sums_saturate
from hwnas.deploy.variants import ConvertedNetwork
from hwnas.deploy.variants.fake_quantisation import FakeQuantisation
from hwnas.deploy.variants.sweep import Sweep, VariantResult

INT8 = Target(Device("cpu", "onnxruntime"), "int8")
OLD = frozenset({"sse4_1", "avx2", "fma", "avx512f", "avx512bw"})
NEW = OLD | {"avx512_vnni"}


@pytest.mark.parametrize(
    ("text", "machine", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f\n", "x86_64", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", "x86_64", False),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx_vnni\n", "AMD64", False),
        ("processor\t: 0\nFeatures\t: asimd asimddp\n", "aarch64", False),
        ("", "x86_64", True),  # unknown flags: slower is better than wrong
        ("", "arm64", False),
    ],
)
def test_sums_saturate_depends_on_the_flags_of_the_processor(
    text: str, machine: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert sums_saturate(instruction_flags(tmp_path / "cpuinfo"), machine) is expected
    assert instruction_flags(tmp_path / "none") == frozenset()


def multiplied_and_added(a: NDArray[np.uint8], w: NDArray[np.int8]) -> int:
    """Emulate VPMADDUBSW and VPADDD on unsigned and signed bytes: pairs saturate at 16 bits."""
    products = a.astype(np.int64) * w
    return int(np.clip(products.reshape(-1, 2).sum(1), -(2**15), 2**15 - 1).sum())


def pairs(largest: int) -> st.SearchStrategy[tuple[list[int], list[int]]]:
    return st.integers(1, 32).flatmap(
        lambda n: st.tuples(
            st.lists(st.integers(0, 255), min_size=2 * n, max_size=2 * n),
            st.lists(st.integers(-largest, largest), min_size=2 * n, max_size=2 * n),
        )
    )


@given(pairs(LARGEST_REDUCED))
def test_sums_with_seven_bit_weights_never_saturate(case: tuple[list[int], list[int]]) -> None:
    a, w = np.array(case[0], np.uint8), np.array(case[1], np.int8)
    assert multiplied_and_added(a, w) == int(a.astype(np.int64) @ w)


@pytest.mark.parametrize("sign", [1, -1])
def test_seven_bits_are_the_widest_weights_that_never_saturate(sign: int) -> None:
    a = np.full(2, 255, np.uint8)
    safe, unsafe = (np.full(2, sign * w, np.int8) for w in (LARGEST_REDUCED, LARGEST_REDUCED + 1))
    assert multiplied_and_added(a, safe) == int(a.astype(np.int64) @ safe)
    assert multiplied_and_added(a, unsafe) != int(a.astype(np.int64) @ unsafe)


def weights_of(model: Path) -> list[NDArray[np.int8]]:
    arrays = [numpy_helper.to_array(each) for each in onnx.load(model).graph.initializer]
    return [each for each in arrays if each.dtype == np.int8 and each.ndim > 1]


@pytest.mark.slow
@pytest.mark.parametrize("needed", [True, False])
def test_quantize_int8_writes_seven_bit_weights_where_sums_saturate(
    needed: bool, exported: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.deploy.quantization.quantize.sums_saturate", lambda: needed)
    made = quantize_int8(exported.path, tmp_path / "int8.onnx", random_batches((1, 8, 8), 4))
    largest = max(np.abs(each.astype(int)).max() for each in weights_of(made))
    assert largest == (LARGEST_REDUCED if needed else 127)
    assert may_saturate(made) is not needed
    assert (saturation_warning(made, INT8, OLD, "x86_64") == "") is needed
    images = random_batches((1, 8, 8), 4)[0]
    expected = open_session(exported.path, Target(INT8.device)).run(images)
    assert relative_error(open_session(made, INT8).run(images), expected) < 0.2


def test_fake_quantisation_uses_the_bits_of_the_written_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    place = "hwnas.deploy.variants.fake_quantisation.sums_saturate"
    for needed, steps in ((True, 2 * LARGEST_REDUCED + 1), (False, 255)):
        monkeypatch.setattr(place, lambda needed=needed: needed)
        layer = torch.nn.Linear(4096, 1)
        torch.nn.init.uniform_(layer.weight, -1, 1)
        FakeQuantisation().begin(torch.nn.Sequential(layer))
        assert steps - 3 <= len(layer.weight.unique()) <= steps


class _Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._batches = iter(random_batches((1, 8, 8), 4))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"images": batch}


def statically(activations: QuantType, weights: QuantType, how: QuantFormat) -> Any:
    def make(source: Path, to: Path) -> None:
        quantize_static(
            source, to, _Images(), how, activation_type=activations, weight_type=weights
        )

    return make


U8, S8 = QuantType.QUInt8, QuantType.QInt8


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (statically(U8, S8, QuantFormat.QDQ), True),
        (statically(U8, S8, QuantFormat.QOperator), True),
        (statically(S8, S8, QuantFormat.QDQ), False),
        (statically(S8, S8, QuantFormat.QOperator), False),
        (statically(U8, U8, QuantFormat.QDQ), False),
        (lambda source, to: to.write_bytes(source.read_bytes()), False),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_may_saturate_depends_on_the_types_of_weights_and_activations(
    make: Callable[[Path, Path], None], expected: bool, exported: Export, tmp_path: Path
) -> None:
    make(exported.path, tmp_path / "made.onnx")
    assert may_saturate(tmp_path / "made.onnx") is expected
    warning = saturation_warning(tmp_path / "made.onnx", INT8, OLD, "x86_64")
    assert bool(warning) is expected
    assert len(warning.splitlines()) == expected
    for flags, machine in ((NEW, "x86_64"), (OLD, "aarch64")):
        assert saturation_warning(tmp_path / "made.onnx", INT8, flags, machine) == ""
    whole = Target(INT8.device)
    assert saturation_warning(tmp_path / "made.onnx", whole, OLD, "x86_64") == ""


@pytest.mark.parametrize("reduced", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_may_saturate_detects_dynamically_quantised_activations(
    reduced: bool, tmp_path: Path
) -> None:
    weights = np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32)
    images, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in "xy"
    )
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    stored = [numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph([node], "g", [images], [outputs], stored)
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "a.onnx")
    to = tmp_path / "b.onnx"
    quantize_dynamic(tmp_path / "a.onnx", to, weight_type=S8, reduce_range=reduced)
    assert may_saturate(to) is not reduced


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("largest", [64, 127])
def test_may_saturate_detects_quantised_weights_stored_as_floats(
    axis: int | None, largest: int, tmp_path: Path
) -> None:
    """PyTorch exports networks that were trained with quantised weights in this form."""
    weights = np.random.default_rng(0).uniform(0.5, 1, (4, 6)).astype(np.float32)
    other = None if axis is None else (axis + 1) % 2
    scale = np.asarray(weights.max(axis=other) / largest, np.float32)
    zero = np.zeros(scale.shape, np.int8)
    images, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 4), ("y", 6))
    )
    how = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "middle"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "middle"], ["d"]),
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["wq"], **how),
        helper.make_node("DequantizeLinear", ["wq", "s", "z"], ["wd"], **how),
        helper.make_node("MatMul", ["d", "wd"], ["y"]),
    ]
    numbers = {
        "w": weights, "s": scale, "z": zero, "step": np.float32(0.1), "middle": np.uint8(128),
    }  # fmt: skip
    stored = [numpy_helper.from_array(np.asarray(each), name) for name, each in numbers.items()]
    graph = helper.make_graph(nodes, "g", [images], [outputs], stored)
    opset = [helper.make_opsetid("", 20)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, tmp_path / "a.onnx")
    assert may_saturate(tmp_path / "a.onnx") is (largest == 127)


@pytest.fixture
def swept(packed: Bundle, measurement: Measurement, tmp_path: Path) -> Bundle:
    """Bundle whose first artifact was quantised for a processor with VNNI."""
    batches = random_batches((1, 8, 8), 4)
    int8 = quantize_int8(
        packed.onnx_file, tmp_path / "a.onnx", batches, ["full"], reduce_range=False
    )
    timed = replace(measurement, target=INT8.name)
    contender = VariantResult(
        "int8", INT8.name, ConvertedNetwork(int8), 1, difference=0.01, measurement=timed
    )
    write_variants(packed, Sweep((contender,), max_loss=0.0), tmp_path / "bundle")
    return Bundle.load(tmp_path / "bundle")


def test_bundle_warns_if_its_int8_file_may_saturate_here(
    swept: Bundle, monkeypatch: pytest.MonkeyPatch, hwnas: Callable[..., Any], tmp_path: Path
) -> None:
    from PIL import Image

    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    place = "hwnas.deploy.quantization.saturation.sums_saturate"
    monkeypatch.setattr(place, lambda flags, machine: False)
    assert not any(check.warns for check in swept.verify())
    assert hwnas("run", swept.folder, tmp_path / "image.png").err == ""
    monkeypatch.setattr(place, lambda flags, machine: True)
    (warning,) = [check.detail for check in swept.verify() if check.warns]
    assert "model.int8.onnx" in warning
    assert "no VNNI" in warning
    assert "no VNNI" in hwnas("verify", swept.folder).out
    answer = hwnas("run", swept.folder, tmp_path / "image.png")
    assert answer.status == 0
    assert answer.err == f"warning: {warning}\n"
