import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from hwnas.deploy import RUNTIMES, Export, Target
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.deploy.targets.number_format import _QUANTISED, number_format, to_float16
from hwnas.errors import ArtifactError


@pytest.mark.slow
def test_runtime_refuses_files_in_another_format_than_the_target(
    exported: Export, tmp_path: Path
) -> None:
    half = to_float16(exported.path, tmp_path / "half.onnx")
    whole = quantize_int8(exported.path, tmp_path / "int8.onnx", random_batches((1, 8, 8), 4))
    assert [number_format(p) for p in (exported.path, half, whole)] == ["fp32", "fp16", "int8"]
    assert half.stat().st_size < 0.7 * exported.path.stat().st_size
    runtime = RUNTIMES["onnxruntime"]
    for path, found in ((half, "fp16"), (whole, "int8")):
        own = Target.parse(f"cpu-onnxruntime-{found}-b1-t1")
        assert runtime.prepare(path, own, tmp_path) == path
        with pytest.raises(ArtifactError, match=f"computes in {found} and the target in fp32"):
            runtime.prepare(path, Target.parse("cpu-onnxruntime-fp32-b1-t1"), tmp_path)


def test_to_float16_keeps_float32_outputs_close_to_the_original(
    exported: Export, tmp_path: Path
) -> None:
    half = to_float16(exported.path, tmp_path / "half.onnx")
    runtime = RUNTIMES["onnxruntime"]
    images = np.random.default_rng(0).standard_normal((2, 1, 8, 8), dtype=np.float32)
    found, expected = (
        runtime.load(path, Target.parse(f"cpu-onnxruntime-{name}-b2-t1")).run(images)
        for path, name in ((half, "fp16"), (exported.path, "fp32"))
    )
    assert found.dtype == np.float32
    onnx.checker.check_model(half, full_check=True)
    assert 0 < np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_number_format_names_files_that_are_not_onnx(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no model")
    for path in (damaged, tmp_path / "nowhere.onnx"):
        with pytest.raises(ArtifactError, match=path.name):
            number_format(path)


FLOAT = TensorProto.FLOAT


def saved(path: Path, node: Any, *weights: Any, functions: Any = ()) -> Path:
    images, outputs = (
        helper.make_tensor_value_info(name, FLOAT, [1, 1, 8, 8]) for name in ("x", "y")
    )
    graph = helper.make_graph([node], "g", [images], [outputs], initializer=weights)
    opset = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opset, functions=functions, ir_version=10)
    path.write_bytes(made.SerializeToString())
    return path


QUANTISED = (
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "MatMulInteger", "QGemm", "QAttention", "QLinearAdd", "QLinearConcat",
    "QLinearGlobalAveragePool", "QEmbedLayerNormalization", "MatMulNBits", "MatMulBnb4",
    "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "GatherBlockQuantized",
    "QOrderedMatMul", "QMoE", "FakeQuantize", "Quant",
)  # fmt: skip


@pytest.mark.parametrize("operator", QUANTISED)
def test_number_format_finds_quantised_operators_in_any_graph(
    operator: str, tmp_path: Path
) -> None:
    node = helper.make_node(operator, ["x"], ["y"], domain="com.microsoft")
    assert number_format(saved(tmp_path / "a.onnx", node)) == "int8"
    branch = helper.make_graph([node], "b", [], [helper.make_tensor_value_info("y", FLOAT, None)])
    either = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    assert number_format(saved(tmp_path / "b.onnx", either)) == "int8"
    function = helper.make_function("own", "F", ["x"], ["y"], [node], [helper.make_opsetid("", 20)])
    call = helper.make_node("F", ["x"], ["y"], domain="own")
    assert number_format(saved(tmp_path / "c.onnx", call, functions=[function])) == "int8"


def test_number_format_knows_all_quantised_operators_of_onnx_runtime() -> None:
    schemas = {
        each.name
        for each in get_all_operator_schema()
        if each.domain in ("", "com.microsoft") and re.match("Q[A-Z]|.*[qQ]uant", each.name)
    }
    assert len(schemas) > 30
    assert all(_QUANTISED.search(name) for name in schemas)


@pytest.mark.parametrize("operator", ["Conv", "QuickGelu", "Attention", "SequenceAt", "Equal"])
def test_number_format_is_fp32_for_float_operators(operator: str, tmp_path: Path) -> None:
    node = helper.make_node(operator, ["x"], ["y"])
    assert number_format(saved(tmp_path / "a.onnx", node)) == "fp32"


@pytest.mark.parametrize(("kind", "name"), [("FLOAT16", "fp16"), ("BFLOAT16", "bf16")])
def test_number_format_finds_16_bit_weights_in_any_graph(
    kind: str, name: str, tmp_path: Path
) -> None:
    half = helper.make_tensor("w", getattr(TensorProto, kind), [4], [1.0] * 4)
    whole = helper.make_tensor("v", FLOAT, [64], [1.0] * 64)
    same = helper.make_node("Identity", ["x"], ["y"])
    assert number_format(saved(tmp_path / "a.onnx", same, half, whole)) == name
    constant = helper.make_node("Constant", [], ["c"], value=half)
    assert number_format(saved(tmp_path / "b.onnx", constant)) == name
    branch = helper.make_graph([], "b", [], [], initializer=[half])
    either = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    assert number_format(saved(tmp_path / "c.onnx", either)) == name
    cast = helper.make_node("Cast", ["v"], ["y"], to=getattr(TensorProto, kind))
    assert number_format(saved(tmp_path / "d.onnx", cast, whole)) == name
    of_input = helper.make_node("Cast", ["x"], ["y"], to=getattr(TensorProto, kind))
    assert number_format(saved(tmp_path / "e.onnx", of_input, whole)) == "fp32"


def test_number_format_is_int8_for_dynamically_quantised_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((8, 8), dtype=np.float32), "w")
    path = saved(tmp_path / "a.onnx", helper.make_node("MatMul", ["x", "w"], ["y"]), weight)
    to = tmp_path / "dynamic.onnx"
    quantize_dynamic(quiet_copy(path, tmp_path), to)
    kinds = {node.op_type for node in onnx.load(to).graph.node}
    assert "MatMulInteger" in kinds
    assert not kinds & {"QuantizeLinear", "DequantizeLinear"}
    assert number_format(to) == "int8"


def quiet_copy(path: Path, folder: Path) -> Path:
    """Return a copy with inferred shapes, so that the quantisation tool prints no advice."""
    quant_pre_process(path, folder / "prepared.onnx", skip_symbolic_shape=True)
    return folder / "prepared.onnx"
