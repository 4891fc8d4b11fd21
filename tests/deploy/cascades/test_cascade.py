"""Packed cascade: its answers, its verification, and its runner, which does not need hwnas."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from PIL import Image
from torch import nn

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    OutputMeaning,
    Preprocessing,
    Target,
    export_onnx,
    write_bundle,
)
from hwnas.deploy.bundles.repacking import write_variants
from hwnas.deploy.caching import PredictionCache
from hwnas.deploy.cascades.cascade import Cascade, open_packed
from hwnas.deploy.cascades.packing import write_cascade
from hwnas.deploy.cascades.runner import CONFIDENCES, Runner, probabilities
from hwnas.deploy.cascades.timing import cascade_pass, network_pass, time_passes
from hwnas.deploy.measurement.measurement import Quantiles
from hwnas.deploy.quantization.quantize import quantize_int8, random_batches
from hwnas.deploy.variants import ConvertedNetwork
from hwnas.deploy.variants.sweep import Sweep, VariantResult
from hwnas.errors import ArtifactError, ConfigError, DataError

LARGER = Preprocessing(12, 12, 1, mean=(0.3,), std=(0.38,))
TARGET = Target.parse("cpu-onnxruntime-fp32-b1-t1")


@pytest.fixture(scope="module")
def big(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """Bundle of the large network, which takes larger images than the small network."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(100, 10))
    folder = tmp_path_factory.mktemp("big")
    made = export_onnx(network, (1, 12, 12), folder / "network.onnx", traceable=True)
    changed = replace(to_pack, export=made, weights=network.state_dict(), preprocessing=LARGER)
    return write_bundle(folder / "bundle", changed, facts)


@pytest.fixture(scope="module")
def median(packed: Bundle, digits: NDArray[np.uint8]) -> float:
    """Threshold at which half of the images are passed on to the big network."""
    sure = CONFIDENCES["margin"](probabilities(packed.predict(digits)))
    return float(np.median(sure))


@pytest.fixture(scope="module")
def cascade(
    packed: Bundle,
    big: Bundle,
    median: float,
    digits: NDArray[np.uint8],
    tmp_path_factory: pytest.TempPathFactory,
) -> Cascade:
    number = {"name": "accuracy", "value": 0.9, "unit": "fraction", "kind": "evaluated"}
    return write_cascade(
        tmp_path_factory.mktemp("cascades") / "two",
        small=packed,
        big=big,
        rule="margin",
        threshold=median,
        numbers=[{**number, "of": "cascade", "n": 40, "split": "test", "standard_error": 0.05}],
        golden_images=digits,
        provenance={"run": "digits"},
    )


def test_cascade_answers_each_image_with_the_responsible_network(
    cascade: Cascade, packed: Bundle, big: Bundle, digits: NDArray[np.uint8]
) -> None:
    scores, on = cascade.predict(digits)
    assert on.sum() == 20
    np.testing.assert_allclose(scores[on], big.predict(digits)[on], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores[~on], packed.predict(digits)[~on], rtol=1e-4, atol=1e-5)
    answers = cascade.run(digits)
    assert [a["network"] for a in answers] == ["big" if went else "small" for went in on]
    assert [a["label"] for a in answers] == [str(row.argmax()) for row in scores]


def test_cascade_with_a_cache_answers_the_same_and_shares_it_with_no_other_rule(
    cascade: Cascade, digits: NDArray[np.uint8], tmp_path: Path
) -> None:
    cache, twice = PredictionCache(), np.concatenate([digits, digits[::-1]])
    assert [each["label"] for each in cascade.run(twice, cache)] == [
        each["label"] for each in cascade.run(twice)
    ]
    assert (cache.counts.hits, cache.counts.misses) == (40, 40)
    folder = Path(shutil.copytree(cascade.folder, tmp_path / "other"))
    (folder / "cascade.json").write_text(json.dumps({**cascade.description, "threshold": 1.0}))
    assert {each["network"] for each in Cascade.load(folder).run(digits, cache)} == {"big"}
    (folder / "small.onnx").write_bytes((folder / "big.onnx").read_bytes())
    changed = Cascade.load(folder)
    assert changed.fingerprint != cascade.fingerprint
    with pytest.raises(DataError, match="no images were given"):
        cascade.predict(digits[:0], cache)


def test_cascade_passes_verification(cascade: Cascade) -> None:
    checks = {check.name: check for check in cascade.verify()}
    assert "16 images, 8 of them from the big network" in checks["golden outputs"].detail
    assert checks["big.onnx loads"].detail == "takes 1 x 12 x 12"
    sums = subprocess.run(
        ["sha256sum", "-c", "cascade.sha256"], cwd=cascade.folder, capture_output=True
    )
    assert sums.returncode == 0
    assert str(cascade.folder).encode() not in (cascade.folder / "cascade.json").read_bytes()


@pytest.mark.slow
def test_runner_needs_neither_hwnas_nor_torch(
    cascade: Cascade, digits: NDArray[np.uint8], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(cascade.folder, tmp_path / "elsewhere"))
    Image.fromarray(digits[3, :, :, 0]).save(folder / "image.png")
    code = (
        "import sys, runner; from pathlib import Path; r = runner.Runner(Path('.'));"
        "assert not {'hwnas', 'torch'} & set(sys.modules);"
        "print(r.verify()); import json; print(json.dumps(r.answer('image.png')))"
    )
    environment = {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    error, answer = done.stdout.splitlines()
    assert float(error) < 1e-4, "it resizes as hwnas does"
    (ours,) = cascade.run([folder / "image.png"])
    found = json.loads(answer)
    assert (found["label"], found["network"]) == (ours["label"], ours["network"])
    assert found["probability"] == pytest.approx(ours["probability"], abs=1e-4)
    for arguments, said in ((["--verify"], "golden outputs differ"), (["image.png"], "image.png")):
        command = [sys.executable, "runner.py", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(said)


@pytest.mark.parametrize("name", ["small.onnx", "big.onnx", "golden.npz", "runner.py", "README.md"])
def test_verify_names_the_file_with_a_flipped_bit(
    cascade: Cascade, name: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(cascade.folder, tmp_path / "damaged"))
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=f"damaged: {name}: its SHA-256"):
        Cascade.load(folder).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 9}, "has schema 9"),
        ({"threshold": 2.0}, "is damaged: rule 'margin' with threshold 2.0"),
        ({"rule": "luck"}, "rule 'luck'"),
        ({"threshold": None}, "is damaged"),
        ({"small": {}}, "is damaged"),
        ({"files": ["a"]}, "is damaged"),
        ({"files": {"../a": ""}}, "not inside the folder"),
    ],
)
def test_cascade_refuses_an_invalid_description(
    cascade: Cascade, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    text = json.dumps({**cascade.description, **change})
    (tmp_path / "cascade.json").write_text(text)
    with pytest.raises(ArtifactError, match=message):
        open_packed(tmp_path)


def test_open_packed_opens_a_cascade_after_an_interrupted_replacement(
    cascade: Cascade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(cascade.folder, tmp_path / ".two.new")
    assert isinstance(open_packed(tmp_path / "two"), Cascade)
    monkeypatch.chdir(tmp_path / "two")
    assert isinstance(open_packed(Path()), Cascade)


def test_cascade_refuses_other_folders_masks_and_empty_batches(
    cascade: Cascade, folder: Path, tmp_path: Path
) -> None:
    assert isinstance(open_packed(cascade.folder), Cascade)
    assert isinstance(open_packed(folder), Bundle)
    with pytest.raises(ArtifactError, match="is not a cascade"):
        Cascade.load(folder)
    (tmp_path / "cascade.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"cascade\.json is damaged"):
        Cascade.load(tmp_path)
    with pytest.raises(DataError, match="makes no masks"):
        cascade.masks(np.zeros((1, 8, 8, 1), np.uint8))
    with pytest.raises(DataError, match="no images were given"):
        cascade.predict(np.zeros((0, 8, 8, 1), np.uint8))


def test_cascade_finds_a_network_that_does_not_fit_its_labels(
    cascade: Cascade, digits: NDArray[np.uint8], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(cascade.folder, tmp_path / "odd"))
    other = nn.Sequential(nn.Conv2d(1, 3, 12), nn.Flatten())
    export_onnx(other, (1, 12, 12), folder / "big.onnx", traceable=True)
    odd = Cascade.load(folder)
    with pytest.raises(ArtifactError, match=r"big\.onnx gives outputs of shape .20, 3.; expected"):
        odd.predict(digits)
    assert [check.name for check in odd.checks() if not check.ok] == ["big.onnx", "golden outputs"]


def test_write_cascade_refuses_networks_with_different_classes(
    packed: Bundle,
    to_pack: BundleNetwork,
    facts: BundleFacts,
    digits: NDArray[np.uint8],
    tmp_path: Path,
) -> None:
    other = OutputMeaning("class_scores", (*"012", "three", *"456789"))
    odd = write_bundle(tmp_path / "odd", replace(to_pack, outputs=other), facts)
    with pytest.raises(ConfigError, match=r"label 3 of .* is '3', and that of .* 'three'"):
        write_cascade(
            tmp_path / "two",
            small=packed,
            big=odd,
            rule="margin",
            threshold=0.5,
            numbers=[],
            golden_images=digits,
            provenance={},
        )
    assert not (tmp_path / "two").exists()


@pytest.mark.slow
def test_write_cascade_packs_and_checks_the_plain_file_of_a_bundle_that_runs_a_variant(
    packed: Bundle, big: Bundle, digits: NDArray[np.uint8], facts: BundleFacts, tmp_path: Path
) -> None:
    int8 = Target.parse("cpu-onnxruntime-int8-b1-t1")
    file = quantize_int8(packed.onnx_file, tmp_path / "a.onnx", random_batches((1, 8, 8), 4))
    plain, slow = ConvertedNetwork(packed.onnx_file), packed.measurements[0]
    fast = replace(slow, target=int8.name, cpu_ms=Quantiles(1e-6, 1e-6, 1e-6))
    found = Sweep(
        (
            VariantResult("fp32", TARGET.name, plain, measurement=slow),
            VariantResult("int8", int8.name, ConvertedNetwork(file), measurement=fast),
        ),
        max_loss=1.0,
    )
    write_variants(packed, found, tmp_path / "bundle")
    swept = Bundle.load(tmp_path / "bundle")
    assert np.abs(swept.predict(digits) - packed.predict(digits)).max() > 1e-4
    two = write_cascade(
        tmp_path / "two",
        small=swept,
        big=big,
        rule="margin",
        threshold=0.5,
        numbers=[],
        golden_images=digits,
        provenance={},
    )
    np.testing.assert_allclose(two.small.scores(digits), packed.predict(digits), atol=1e-5)
    assert "energy of an image is unknown" in (two.folder / "README.md").read_text()


def test_time_passes_times_a_cascade_beside_its_networks(
    packed: Bundle, big: Bundle, digits: NDArray[np.uint8]
) -> None:
    """Two networks on every image take longer than the small one alone; no time is zero."""
    images = digits[:10]
    passes = {
        "small": network_pass(packed, images, TARGET),
        "never": cascade_pass(packed, big, "margin", 0.0, images, TARGET),
        "always": cascade_pass(packed, packed, "margin", 1.0, images, TARGET),
    }
    found = time_passes(passes, len(images), TARGET)
    assert 0 < found["small"].p50 < found["always"].p50
    assert found["never"].p20 <= found["never"].p50 <= found["never"].p80


@pytest.fixture
def failing(cascade: Cascade, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the cascade, with networks that give NaN for black images."""

    def make(*parts: str) -> Path:
        folder = Path(shutil.copytree(cascade.folder, tmp_path / "-".join(parts)))
        for part in parts:
            path = folder / f"{part}.onnx"
            model = onnx.load(path)
            graph = model.graph
            (output,) = graph.output
            for node in graph.node:
                node.output[:] = ["before" if n == output.name else n for n in node.output]
            black = numpy_helper.from_array(np.float32(-0.3 / 0.38 + 1e-3), "black")
            nan = numpy_helper.from_array(np.float32(np.nan), "nan")
            graph.initializer.extend([black, nan])
            graph.node.extend(
                [
                    helper.make_node("ReduceMax", [graph.input[0].name], ["most"], keepdims=0),
                    helper.make_node("Less", ["most", "black"], ["dark"]),
                    helper.make_node("Where", ["dark", "nan", "before"], [output.name]),
                ]
            )
            onnx.save(model, path)
        return folder

    return make


BLACK = np.zeros((1, 8, 8, 1), np.uint8)


@pytest.mark.parametrize("threshold", [0.0, 1e-9, 0.5])
def test_cascade_passes_images_with_nan_scores_to_the_big_network(
    failing: Callable[..., Path], big: Bundle, threshold: float
) -> None:
    folder = failing("small")
    about = json.loads((folder / "cascade.json").read_text())
    (folder / "cascade.json").write_text(json.dumps({**about, "threshold": threshold}))
    cascade = Cascade.load(folder)
    assert not np.isfinite(cascade.small.scores(BLACK)).any()
    (answer,) = cascade.run(BLACK)
    assert answer["network"] == "big"
    assert answer["label"] == big.run(BLACK)[0]["label"]
    scores, part = Runner(folder).scores(BLACK[0])
    assert part == "big"
    assert np.isfinite(scores).all()


def test_cascade_refuses_to_answer_if_both_networks_give_nan(failing: Callable[..., Path]) -> None:
    folder = failing("small", "big")
    two = Cascade.load(folder)
    with pytest.raises(ArtifactError, match="image 1 of 1 are NaN or infinite"):
        two.run(BLACK)
    Image.fromarray(BLACK[0, :, :, 0]).save(folder / "image.png")
    done = subprocess.run(
        [sys.executable, "runner.py", "image.png"], cwd=folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "NaN or infinite" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_cascade_files_get_the_mode_that_the_umask_allows(cascade: Cascade) -> None:
    modes = {stat.S_IMODE(each.stat().st_mode) for each in cascade.folder.iterdir()}
    assert modes == {0o666 & ~umask()}


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@pytest.mark.slow
def test_runner_reports_an_unreadable_image_in_one_line(cascade: Cascade, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 400), np.uint8)).save(
        file, "PNG"
    )
    first, _, rest = file.getvalue().rpartition(b"IDAT")  # the last of two IDAT chunks
    assert b"IDAT" in first
    damaged = {"chunk.png": first + b"\x14\xfe\xee\x8e" + rest, "text.png": b"text"}
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
    for name in (*damaged, "missing.png"):
        command = [sys.executable, cascade.folder / "runner.py", tmp_path / name]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert name in done.stderr


@pytest.mark.parametrize("name", ["ramp.png", "ramp.tif"])
def test_runner_reads_images_as_hwnas_does(cascade: Cascade, tmp_path: Path, name: str) -> None:
    ramp = np.linspace(0, 65535, 30 * 20).reshape(30, 20).astype(np.uint16)
    orientation = Image.Exif()
    orientation[274] = 6
    Image.fromarray(ramp).save(tmp_path / name, exif=orientation)
    (expected,) = cascade.run([tmp_path / name])
    pixels = Runner(cascade.folder).read(tmp_path / name)
    assert np.array_equal(pixels, cascade.small.preprocessing.read_image(tmp_path / name))
    command = [sys.executable, cascade.folder / "runner.py", tmp_path / name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, label, probability, part = done.stdout.split()
    assert (label, part) == (expected["label"], f"({expected['network']})")
    assert probability == f"{expected['probability']:.1%}"
