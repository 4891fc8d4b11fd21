import json
import os
import random
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    Measurement,
    Preprocessing,
    write_bundle,
)
from hwnas.deploy.bundles.checksums import render_sums, sha256
from hwnas.errors import ArtifactError, DataError

FILES = (
    "README.md", "bundle.json", "bundle.sha256", "golden.npz", "model.onnx", "weights.safetensors",
)  # fmt: skip


def edit(folder: Path, change: Callable[[dict[str, Any]], object] = lambda d: None) -> None:
    """Change bundle.json and recompute all checksums, as in a deliberate manipulation."""
    path = folder / "bundle.json"
    description = json.loads(path.read_text())
    for sums in (description["files"], description["artifacts"][0]["sha256"]):
        sums.update({name: sha256(folder / name) for name in sums})
    change(description)
    path.write_text(json.dumps(description))
    names = set(FILES) - {"bundle.sha256"}
    sums = {name: sha256(folder / name) for name in names}
    (folder / "bundle.sha256").write_text(render_sums(sums))


def test_bundle_passes_verification(packed: Bundle) -> None:
    assert sorted(file.name for file in packed.folder.iterdir()) == list(FILES)
    checks = packed.verify()
    assert {*FILES, "ONNX model", "PyTorch weights", "golden outputs"} == {c.name for c in checks}
    assert all(check.ok for check in checks)


def test_bundle_opens_from_a_path_inside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card recommends ``hwnas verify .``."""
    (folder / "inner").mkdir()
    for inside, named in ((folder, "."), (folder / "inner", "..")):
        monkeypatch.chdir(inside)
        assert all(check.ok for check in Bundle.load(Path(named)).verify())


@pytest.mark.parametrize("name", FILES)
def test_verify_finds_one_flipped_bit_in_any_file(folder: Path, name: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    rng = random.Random(name)
    places = [0, len(whole) // 2, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(5))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError) as raised:
            Bundle.load(folder).verify()
        assert len(str(raised.value).splitlines()) == 1
        if name != "bundle.sha256":
            assert name in str(raised.value) or "bundle.json" in str(raised.value)
    path.write_bytes(whole)
    Bundle.load(folder).verify()


@pytest.mark.parametrize("name", FILES)
def test_verify_names_a_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        Bundle.load(folder).verify()


@pytest.mark.parametrize("name", ["golden.npz", "model.onnx", "weights.safetensors"])
@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "half"])
def test_verify_finds_damaged_files_with_recomputed_checksums(
    folder: Path, name: str, content: bytes | None
) -> None:
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2] if content is None else content)
    edit(folder)
    bundle = Bundle.load(folder)
    with pytest.raises(ArtifactError, match=name):
        bundle.verify()
    sums = [check for check in bundle.checks() if check.name in FILES]
    assert all(check.ok for check in sums)


def test_verify_finds_outputs_that_differ_from_the_golden_outputs(folder: Path) -> None:
    with np.load(folder / "golden.npz") as arrays:
        images, outputs = arrays["images"], arrays["outputs"]
    np.savez(folder / "golden.npz", images=images, outputs=outputs * 1.01)
    (check,) = [c for c in Bundle.load(folder).checks() if c.name == "golden outputs"]
    assert not check.ok
    assert "outputs differ by 0.0099" in check.detail


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("images", np.zeros((), np.uint8)),
        ("images", np.zeros((5, 8, 8), np.uint8)),
        ("outputs", np.zeros(())),
        ("outputs", np.full((5, 10), "a")),
        ("outputs", np.zeros((5, 10), "datetime64[s]")),
    ],
)
def test_verify_refuses_golden_arrays_of_wrong_shape_or_type(
    folder: Path, name: str, array: NDArray[Any]
) -> None:
    with np.load(folder / "golden.npz") as arrays:
        kept = {key: arrays[key] for key in arrays.files}
    np.savez(folder / "golden.npz", **{**kept, name: array})
    edit(folder)
    with pytest.raises(ArtifactError, match=r"golden\.npz is damaged"):
        Bundle.load(folder).verify()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside", 3])
def test_bundle_refuses_file_names_outside_its_folder(folder: Path, name: object) -> None:
    edit(folder, lambda d: d["artifacts"][0].update(files=[name], sha256={name: "0"}))
    with pytest.raises(ArtifactError, match="not inside the folder"):
        Bundle.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(schema=2),
        lambda d: d.pop("preprocessing"),
        lambda d: d.pop("outputs"),
        lambda d: d.update(artifacts=[]),
        lambda d: d.update(artifacts="model.onnx"),
        lambda d: d.update(files="model.onnx"),
        lambda d: d.update(measurements=[{}]),
        lambda d: d["preprocessing"].update(std=[0]),
        lambda d: d.update(labels=list("abc")),
        lambda d: d.update(task="\ud83d"),
        lambda d: d["preprocessing"].update(height=10**6, width=10**6),
        lambda d: d["preprocessing"].update(height=float("inf")),
        lambda d: d["measurements"][0]["cpu_ms"].update(p50=10**400),
    ],
)
def test_bundle_refuses_a_description_with_invalid_entries(
    folder: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edit(folder, change)
    with pytest.raises(ArtifactError, match=r"bundle\.json"):
        Bundle.load(folder)


def relabel(description: dict[str, Any]) -> None:
    description["labels"] = description["outputs"]["labels"] = list("abc")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda d: d["preprocessing"].update(height=9), r"takes inputs of shape \(1, 8, 8\)"),
        (
            lambda d: d["preprocessing"].update(channels=3, mean=[0.5] * 3, std=[0.5] * 3),
            r"the preprocessing gives \(3, 8, 8\)",
        ),
        (relabel, r"expected \(N, 3\), from its labels"),
        (
            lambda d: d["outputs"].update(kind="pixel_class_scores"),
            r"expected \(N, 10, H, W\), from its labels",
        ),
    ],
)
def test_bundle_refuses_a_description_that_does_not_fit_the_network(
    folder: Path, digits: NDArray[np.uint8], change: Callable[[dict[str, Any]], object], part: str
) -> None:
    edit(folder, change)
    with pytest.raises(ArtifactError, match=part):
        Bundle.load(folder).verify()
    with pytest.raises(ArtifactError, match=part):
        Bundle.load(folder).run(digits[:1])


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "[" * 100_000])
def test_bundle_refuses_a_damaged_description(folder: Path, text: str) -> None:
    (folder / "bundle.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"bundle\.json"):
        Bundle.load(folder)


def test_bundle_refuses_a_folder_that_is_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a bundle"):
        Bundle.load(tmp_path)
    with pytest.raises(ArtifactError, match="is not a bundle"):
        Bundle.load(tmp_path / "nowhere")


def test_bundle_predicts_the_labels_of_the_pytorch_network(
    packed: Bundle, network: nn.Module, preprocessing: Preprocessing, digits: NDArray[np.uint8]
) -> None:
    was_training = network.training
    with torch.no_grad():
        expected = network.eval()(preprocessing(digits)).argmax(1).tolist()
    network.train(was_training)
    assert [row["label"] for row in packed.run(digits)] == [str(label) for label in expected]


def test_bundle_runs_on_image_files_of_any_size(
    packed: Bundle, digits: NDArray[np.uint8], tmp_path: Path
) -> None:
    Image.fromarray(digits[0, :, :, 0]).save(tmp_path / "as_is.png")
    Image.fromarray(digits[0, :, :, 0]).convert("RGB").resize((31, 17)).save(tmp_path / "big.png")
    same, big = packed.run([tmp_path / "as_is.png", str(tmp_path / "big.png")])
    (expected,) = packed.run(digits[:1])
    assert same["label"] == expected["label"]
    assert same["probability"] == pytest.approx(expected["probability"])
    assert big["label"] in "0123456789"


def test_bundle_refuses_images_of_wrong_shape(packed: Bundle) -> None:
    with pytest.raises(DataError, match="no images"):
        packed.run(np.zeros((0, 8, 8, 1), np.uint8))
    with pytest.raises(DataError, match="expected"):
        packed.run(np.zeros((1, 8, 8, 3), np.uint8))


def test_bundle_weights_equal_those_of_the_network(packed: Bundle, network: nn.Module) -> None:
    weights = packed.weights()
    assert weights.keys() == network.state_dict().keys()
    assert all(torch.equal(weights[k], tensor) for k, tensor in network.state_dict().items())


def test_description_says_the_kind_of_each_number(packed: Bundle, measurement: Measurement) -> None:
    description = packed.description
    assert packed.measurements == [measurement]
    assert [m["kind"] for m in description["measurements"]] == ["measured"]
    assert [p["kind"] for p in description["predictions"]] == ["predicted"]
    assert [m["kind"] for m in description["metrics"]] == ["evaluated"]
    assert description["artifacts"][0]["format"] == "onnx"
    assert description["inputs"][0]["shape"] == ["batch", 1, 8, 8]
    assert packed.architecture.id == description["id"]


def test_bundle_verifies_weights_in_a_separate_file(
    to_pack: BundleNetwork,
    facts: BundleFacts,
    packed: Bundle,
    digits: NDArray[np.uint8],
    tmp_path: Path,
) -> None:
    """A bundle without a checksum for these weights opens, but does not pass verification."""
    (tmp_path / "model").mkdir()
    model = tmp_path / "model" / "a.onnx"
    whole = onnx.load(to_pack.export.path)
    onnx.save_model(whole, model, save_as_external_data=True, location="weights.bin")
    apart = replace(to_pack, export=replace(to_pack.export, path=model))
    bundle = write_bundle(tmp_path / "bundle", apart, facts)
    bundle.verify()
    assert bundle.files == sorted([*FILES[:2], *FILES[3:], "model.onnx.data"])
    np.testing.assert_array_equal(bundle.predict(digits), packed.predict(digits))
    data = bundle.folder / "model.onnx.data"
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=r"model.onnx.data: its SHA-256"):
        Bundle.load(bundle.folder).verify()
    data.write_bytes(content)
    description = json.loads((bundle.folder / "bundle.json").read_text())
    (artifact,) = description["artifacts"]
    artifact["files"].remove("model.onnx.data")
    del artifact["sha256"]["model.onnx.data"]
    (bundle.folder / "bundle.json").write_text(json.dumps(description))
    names = set(FILES) - {"bundle.sha256"}
    sums = {name: sha256(bundle.folder / name) for name in names}
    (bundle.folder / "bundle.sha256").write_text(render_sums(sums))
    older = Bundle.load(bundle.folder)
    np.testing.assert_array_equal(older.predict(digits), packed.predict(digits))
    with pytest.raises(
        ArtifactError, match=r"keeps weights in model.onnx.data, for which no checksum"
    ):
        older.verify()


def test_bundle_files_get_the_mode_that_the_umask_allows(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path
) -> None:
    for mask, mode in ((0o022, 0o644), (0o027, 0o640)):
        before = os.umask(mask)
        try:
            bundle = write_bundle(tmp_path / f"{mask}", to_pack, facts)
        finally:
            os.umask(before)
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in bundle.folder.iterdir()}
        assert modes == dict.fromkeys(FILES, mode)
