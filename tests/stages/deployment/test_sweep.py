"""Sweeps of a run, a bundle and an ONNX file."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from hwnas.deploy import Bundle
from hwnas.errors import ArtifactError, ConfigError, DataError, StorageError
from hwnas.progress import make_reporter
from hwnas.stages.deployment.sweep import SweepOptions, sweep_network
from hwnas.stages.finalists.bundles import read_bundles

HERE = ["cpu-onnxruntime-b1-t1"]
QUIET = make_reporter(quiet=True)


@pytest.fixture
def bundle(finished: Path, tmp_path: Path) -> Bundle:
    """Copy a bundle out of its run."""
    found = next(iter(read_bundles(finished / "bundles").values()))
    return Bundle.load(Path(shutil.copytree(found.folder, tmp_path / "elsewhere" / "bundle")))


@pytest.mark.slow
def test_sweep_of_a_run_uses_its_images_and_training(finished: Path, tmp_path: Path) -> None:
    options = SweepOptions(max_loss=0.5, finetune_minutes=0.05)
    found = sweep_network(finished, HERE, options, tmp_path / "out", QUIET)
    assert [each.variant for each in found.results] == [
        "fp32", "fp16", "int8", "int8-combined", "int8-equalised", "int8-gptq", "int8-mixed",
        "int8-qat", "int8-rotated", "sparse-2of4",
    ]  # fmt: skip
    plain, *others = found.results
    assert plain.quality is not None
    assert (plain.quality.loss, plain.refusal) == (0, "")
    for each in others:
        assert each.quality is not None
        assert each.quality.split == "validation"
        assert each.quality.value == pytest.approx(plain.quality.value - each.quality.loss)
    assert found.tested is not None
    assert found.tested.split == "test"
    written = Bundle.load(tmp_path / "out")
    written.verify()
    assert written.artifacts[0].variant == found.chosen.variant
    assert written.description["sweep"]["tested"]["n"] == found.tested.n
    trained = next(each for each in found.results if each.variant == "sparse-2of4")
    assert trained.made is not None


@pytest.mark.slow
def test_sweep_of_a_run_makes_the_sparse_variants_that_are_named(
    finished: Path, tmp_path: Path
) -> None:
    names = ("sparse-2of4-int8", "sparse-unstructured-50-oneshot")
    options = SweepOptions(names, max_loss=1.0, finetune_minutes=0.05)
    found = sweep_network(finished, HERE, options, tmp_path / "out", QUIET)
    assert [(each.variant, each.refusal) for each in found.results] == [(n, "") for n in names]
    for each in found.results:
        assert each.made is not None
        assert each.made.about["density"] == pytest.approx(0.5, abs=0.01)
        assert each.made.about["bytes_without_zeros"] < each.bytes
    written = Bundle.load(tmp_path / "out")
    written.verify()
    assert {artifact.variant for artifact in written.artifacts} == set(names)


@pytest.mark.slow
def test_sweep_of_a_bundle_needs_data_outside_its_run(finished: Path, bundle: Bundle) -> None:
    options = SweepOptions(("fp32", "int8"), max_loss=0.5)
    inside = next(iter(read_bundles(finished / "bundles").values()))
    judged = sweep_network(inside.folder, HERE, options, reporter=QUIET)
    assert all(each.quality is not None for each in judged.results)
    timed = sweep_network(bundle.folder, HERE, options, reporter=QUIET)
    assert [bool(each.refusal) for each in timed.results] == [False, True]
    again = sweep_network(
        bundle.folder, HERE, SweepOptions(("int8",), 0.5, data="digits"), reporter=QUIET
    )
    assert again.results[0].quality is not None
    assert again.results[0].answers is not None
    assert again.results[0].answers.share > 0.5


@pytest.mark.slow
def test_sweep_of_an_onnx_file_works_with_and_without_images(bundle: Bundle) -> None:
    for data in (None, "digits"):
        options = SweepOptions(("fp32", "int8"), 1.0, data=data)
        found = sweep_network(bundle.onnx_file, HERE, options, reporter=QUIET)
        assert found.chosen.measurement is not None
        assert (found.chosen.quality is None) == (data is None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variants": ("int9",)}, "unknown variant 'int9'; did you mean 'int8'"),
        ({"variants": ("sparse-2of4-60",)}, "density is 0.6, but structure 2of4 keeps exactly"),
        ({"max_loss": -1.0}, "max_loss is -1.0"),
        ({"max_loss": float("nan")}, "max_loss is nan"),
        ({"finetune_minutes": 0.0}, "finetune_minutes is 0.0"),
    ],
)
def test_sweep_options_refuse_invalid_values(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SweepOptions(**options)  # type: ignore[arg-type]


def test_sweep_refuses_options_and_data_that_do_not_fit(
    finished: Path, bundle: Bundle, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="a run, which has its own images"):
        sweep_network(finished, HERE, SweepOptions(data="digits"), reporter=QUIET)
    with pytest.raises(ConfigError, match="--pick is for the networks of a run"):
        sweep_network(bundle.folder, HERE, SweepOptions(pick="knee"), reporter=QUIET)
    with pytest.raises(ConfigError, match="closest target"):
        sweep_network(bundle.folder, ["cpu-onxruntime-b1-t1"], reporter=QUIET)
    with pytest.raises(StorageError, match="exists already"):
        sweep_network(bundle.folder, HERE, out=tmp_path, reporter=QUIET)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8)
    labels = np.arange(60) % 3
    file = tmp_path / "three.npz"
    np.savez(file, x_train=images, y_train=labels, x_test=images, y_test=labels)
    with pytest.raises(DataError, match=r"3 classes .* but the network has 10"):
        sweep_network(bundle.folder, HERE, SweepOptions(data=f"npz:{file}"), reporter=QUIET)
    with pytest.raises(DataError, match="3 classes of the images need"):
        sweep_network(bundle.onnx_file, HERE, SweepOptions(data=f"npz:{file}"), reporter=QUIET)


def test_sweep_refuses_a_damaged_bundle(bundle: Bundle, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle.folder, tmp_path / "damaged"))
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    options = SweepOptions(("fp32",))
    with pytest.raises(ArtifactError, match=r"weights.safetensors: its SHA-256"):
        sweep_network(folder, HERE, options, tmp_path / "out", QUIET)
    assert not (tmp_path / "out").exists()
