"""Sweep on real runtimes: chosen variants, refused variants with reasons, and written files."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hwnas.deploy import Bundle, Device, Export, TimingSettings
from hwnas.deploy.bundles.repacking import write_variants
from hwnas.deploy.quantization.quantize import random_batches
from hwnas.deploy.variants import VARIANTS, ConvertedNetwork, VariantInputs
from hwnas.deploy.variants.quality import Quality
from hwnas.deploy.variants.sweep import Sweep, VariantResult, sweep
from hwnas.errors import ArtifactError, ConfigError

ORT, TORCH = Device("cpu", "onnxruntime"), Device("cpu", "pytorch")
QUICK = TimingSettings(warmup=1, rounds=5, round_ms=1.0)
BATCHES = random_batches((1, 8, 8), 8)


@dataclass(frozen=True)
class Answers:
    """Evaluator whose loss is the share of labels that differ from those of the network."""

    batches: Iterable[NDArray[np.float32]]

    def inputs(self) -> Iterable[NDArray[np.float32]]:
        return self.batches

    def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
        loss = float((outputs.argmax(1) != expected.argmax(1)).mean())
        return Quality(
            "accuracy", "maximize", 1 - loss, 0.0, loss, 0.0, "fraction", len(outputs), "validation"
        )


def swept(exported: Export, folder: Path, *names: str, **options: Any) -> Sweep:
    material = VariantInputs(exported.path, BATCHES, max_loss=options.pop("max_loss", 1.0))
    variants = [VARIANTS[name] for name in names]
    return sweep(material, variants, [ORT, TORCH], folder, settings=QUICK, **options)


@pytest.mark.slow
def test_sweep_times_supported_variants_and_chooses_the_fastest(
    exported: Export, tmp_path: Path
) -> None:
    shares: list[float] = []
    found = swept(
        exported, tmp_path, "fp32", "bf16", "fp16", "int8",
        evaluator=Answers(BATCHES), progress=lambda share, _: shares.append(share),
    )  # fmt: skip
    assert [(each.variant, each.target) for each in found.results] == [
        ("fp32", "cpu-onnxruntime-fp32-b1-t1"),
        ("fp32", "cpu-pytorch-fp32-b1-t1"),
        ("fp16", "cpu-onnxruntime-fp16-b1-t1"),
        ("int8", "cpu-onnxruntime-int8-b1-t1"),
    ]
    assert all(each.measurement is not None for each in found.results)
    assert found.chosen.latency_ms == min(each.latency_ms for each in found.results)
    by_name = {each.target: each for each in found.results}
    assert by_name["cpu-pytorch-fp32-b1-t1"].difference < 1e-4
    assert by_name["cpu-onnxruntime-int8-b1-t1"].difference > 1e-4
    assert by_name["cpu-onnxruntime-int8-b1-t1"].bytes < exported.path.stat().st_size
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert {q["kind"] for q in (c["quality"] for c in found.to_json()["contenders"])} == {
        "evaluated"
    }


@pytest.mark.slow
def test_sweep_without_images_chooses_only_exact_variants(exported: Export, tmp_path: Path) -> None:
    found = swept(exported, tmp_path, "fp32", "int8")
    plain, _, rounded = found.results
    assert rounded.measurement is not None  # the variant is timed nevertheless
    assert "no images" in rounded.refusal
    assert found.chosen.variant == "fp32"
    assert rounded not in found.able
    assert plain in found.able


@pytest.mark.slow
def test_sweep_refuses_variants_that_lose_too_much_accuracy(
    exported: Export, tmp_path: Path
) -> None:
    @dataclass(frozen=True)
    class Strict(Answers):
        def judge(self, outputs: NDArray[Any], expected: NDArray[Any]) -> Quality:
            exact = np.abs(outputs - expected).max() < 1e-4
            quality = super().judge(outputs, expected)
            return replace(quality, loss=0.0 if exact else 0.03)

    found = swept(exported, tmp_path, "fp32", "int8", evaluator=Strict(BATCHES), max_loss=0.02)
    assert found.results[2].refusal == "it loses 0.03 in accuracy; at most 0.02 is allowed"
    assert found.chosen.variant == "fp32"


def test_sweep_without_an_eligible_variant_gives_the_reasons() -> None:
    refused = VariantResult("int8", "cpu-onnxruntime-int8-b1-t1", refusal="it is wrong")
    with pytest.raises(ArtifactError, match="int8 on cpu-onnxruntime-int8-b1-t1: it is wrong"):
        _ = Sweep((refused,), 0.01).chosen


def test_sweep_refuses_impossible_variants_and_devices(exported: Export, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"int8-mixed cannot be made: .* give --data"):
        swept(exported, tmp_path, "int8-mixed")
    with pytest.raises(ConfigError, match=r"int8-qat cannot be made: .* the run"):
        swept(exported, tmp_path, "int8-qat")
    material = VariantInputs(exported.path, BATCHES)
    with pytest.raises(ConfigError, match="cannot be compared"):
        sweep(material, [VARIANTS["fp32"]], [ORT, Device("cpu", "pytorch", 8)], tmp_path)


@pytest.mark.slow
def test_write_variants_packs_all_variants_into_a_bundle(packed: Bundle, tmp_path: Path) -> None:
    material = VariantInputs(packed.onnx_file, BATCHES, max_loss=1.0)
    names = ("fp32", "int8")
    found = sweep(
        material, [VARIANTS[n] for n in names], [ORT, TORCH], tmp_path,
        meaning=packed.outputs, evaluator=Answers(BATCHES), settings=QUICK,
    )  # fmt: skip
    # Give int8 the lowest latency, whatever it is on this machine.
    slow = [each for each in found.results if each.variant != "int8"]
    fast = next(each for each in found.results if each.variant == "int8")
    quick = replace(fast, measurement=replace(fast.measurement, cpu_ms=_tiny(fast)))
    chosen = Sweep((*slow, quick), 1.0)
    write_variants(packed, chosen, tmp_path / "bundle")
    bundle = Bundle.load(tmp_path / "bundle")
    assert next((a.variant, a.runtime) for a in bundle.artifacts) == ("int8", "onnxruntime")
    assert {a.runtime for a in bundle.artifacts} == {"onnxruntime", "pytorch"}
    assert bundle.onnx_file.name == "model.onnx"
    names_of_checks = {check.name for check in bundle.verify()}
    assert "golden outputs, int8 on onnxruntime" in names_of_checks
    assert "golden outputs, fp32 on pytorch" in names_of_checks
    golden = bundle.golden()
    said = bundle.predict(golden["images"])
    np.testing.assert_allclose(said, golden[bundle.artifacts[0].golden], atol=1e-5)
    assert np.abs(said - packed.predict(golden["images"])).max() > 1e-4  # int8 was chosen
    entry = bundle.description["artifacts"][0]
    assert entry["measurement"]["kind"] == "measured"
    assert entry["answers"]["by_class"]
    assert "int8" in (bundle.folder / "README.md").read_text()


def _tiny(contender: VariantResult) -> Any:
    assert contender.measurement is not None
    return replace(contender.measurement.cpu_ms, p50=1e-9)


def test_write_variants_writes_the_chosen_file_and_the_results(
    exported: Export, tmp_path: Path
) -> None:
    found = swept(exported, tmp_path / "files", "fp32")
    write_variants(exported.path, found, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.onnx", "sweep.json"}


@pytest.mark.slow
def test_variants_report_which_can_be_made_from_the_inputs(
    exported: Export, tmp_path: Path
) -> None:
    material = VariantInputs(exported.path, BATCHES)
    assert [name for name, v in VARIANTS.items() if not v.lacks(material)] == [
        "fp32", "bf16", "fp16", "int8",
    ]  # fmt: skip
    made = VARIANTS["int8"].make(material, tmp_path / "int8.onnx")
    assert made == ConvertedNetwork(tmp_path / "int8.onnx")


def test_quality_has_a_nonzero_loss_interval_without_observed_loss() -> None:
    """Without loss, the standard error and the normal approximation's interval are 0 wide."""
    found = Quality("accuracy", "maximize", 1.0, 0.0, 0.0, 0.0, "fraction", 50, "test")
    assert -0.06 < found.loss_interval.low < 0 < found.loss_interval.high < 0.06
    assert found.interval.ends == pytest.approx([0.9287, 1.0], abs=1e-4)
    told = found.to_json()
    assert (told["interval"], told["loss_interval"]) == (
        found.interval.ends,
        found.loss_interval.ends,
    )
    other = replace(found, unit="pixels", value=3.0, standard_error=2.0)
    assert other.interval.low < 0


def test_sweep_refuses_a_file_that_is_quantised_already(exported: Export, tmp_path: Path) -> None:
    """The file is quantised dynamically, so it has no operators of static quantisation."""
    weights = np.random.default_rng(0).standard_normal((8, 8), dtype=np.float32)
    images, outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in "xy"
    )
    graph = helper.make_graph(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
            helper.make_node("MatMulInteger", ["xq", "w", "xz"], ["sums"]),
            helper.make_node("Cast", ["sums"], ["whole"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["whole", "xs"], ["y"]),
        ],
        "g", [images], [outputs],
        [numpy_helper.from_array((20 * weights).clip(-127, 127).astype(np.int8), "w")],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), tmp_path / "a.onnx")
    material = VariantInputs(tmp_path / "a.onnx", random_batches((8,), 1))
    with pytest.raises(ConfigError, match="computes in int8 already"):
        sweep(material, [VARIANTS["fp32"]], [ORT], tmp_path, settings=QUICK)
