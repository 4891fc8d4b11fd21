"""Fine-tuning of a bundle on other images: by a plan, within a memory limit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from hwnas.deploy import (
    Bundle,
    BundleFacts,
    BundleNetwork,
    OutputMeaning,
    Preprocessing,
    export_onnx,
    write_bundle,
)
from hwnas.deploy.finetuning.plan import FineTuningPlan
from hwnas.deploy.finetuning.training import FineTuningSettings
from hwnas.errors import ArtifactError, ConfigError, DataError, InfeasibleError, StorageError
from hwnas.progress import SilentReporter
from hwnas.search_spaces import mobilenet
from hwnas.stages.deployment.finetuning import (
    PlanOptions,
    finetune_bundle,
    plan_finetuning,
    random_batches,
    stale_files,
)

DIGITS = tuple("0123456789")
OPTIONS = PlanOptions(200_000, batch=16, probe=FineTuningSettings(6, 0.05))
Written = Callable[..., Bundle]


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (N, 8, 8, 1) and their classes."""
    found = load_digits()
    return (found.images * 15).astype(np.uint8)[..., None], found.target


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in inverted colours."""
    pixels, classes = digits()
    pixels = 255 - pixels
    path = tmp_path_factory.mktemp("images") / "inverted.npz"
    parts = {"x_train": pixels[:1200], "y_train": classes[:1200]}
    np.savez(path, **parts, x_test=pixels[1200:], y_test=classes[1200:])
    return path


def trained(preprocessing: Preprocessing) -> nn.Module:
    """Return a network that was trained on digits."""
    torch.manual_seed(0)
    network = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(24, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10)),
    )
    optimizer = torch.optim.Adam(network.parameters(), 0.003)
    pixels, classes = digits()
    inputs, targets = preprocessing(pixels[:1200]).contiguous(), torch.from_numpy(classes[:1200])
    for step in range(120):
        rows = slice(60 * (step % 20), 60 * (step % 20 + 1))
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    return network.eval()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder, space = tmp_path_factory.mktemp("bundle"), mobilenet((8, 8, 1), 10)
    preprocessing = Preprocessing(8, 8, 1, (0.5,), (0.25,))
    network = trained(preprocessing)
    export = export_onnx(network, (1, 8, 8), folder / "model.onnx", traceable=True)
    meaning = OutputMeaning("class_scores", DIGITS)
    packed = BundleNetwork(
        space.smallest(), export, network.state_dict(), preprocessing, meaning, digits()[0][:3]
    )
    counted = {"name": "macs", "value": 1.0, "kind": "counted"}
    facts = BundleFacts("mobilenet", "classification", {}, [counted])
    return write_bundle(folder / "packed", packed, facts)


@pytest.fixture(scope="module")
def plan(bundle: Bundle, images: Path) -> FineTuningPlan:
    return plan_finetuning(bundle, f"npz:{images}", OPTIONS, SilentReporter())


@pytest.mark.slow
def test_plan_keeps_the_limit_and_trains_something(plan: FineTuningPlan) -> None:
    assert plan.scheme.layers
    assert plan.memory.total_bytes <= OPTIONS.memory_bytes
    assert plan.limit_bytes == OPTIONS.memory_bytes
    assert set(plan.scheme.layers) <= set(plan.contributions["layers"])


@pytest.mark.slow
def test_plan_of_more_memory_contributes_more(
    plan: FineTuningPlan, bundle: Bundle, images: Path
) -> None:
    more = replace(OPTIONS, memory_bytes=10**8)
    richer = plan_finetuning(bundle, f"npz:{images}", more, SilentReporter())
    assert len(richer.backward) > len(plan.backward)
    assert richer.contributions == plan.contributions


@pytest.mark.slow
def test_fine_tuned_bundle_is_better_on_the_new_images_and_verifies(
    plan: FineTuningPlan, bundle: Bundle, images: Path, tmp_path: Path
) -> None:
    settings = FineTuningSettings(150, 0.05)
    given = bundle, f"npz:{images}", plan, settings
    found = finetune_bundle(*given, tmp_path / "new", SilentReporter())
    assert found.after.values["accuracy"] > found.before.values["accuracy"] + 0.1
    written = Bundle.load(tmp_path / "new")
    assert len(written.verify()) > 3
    metrics = {(m["name"], m.get("split")): m["value"] for m in written.description["metrics"]}
    assert metrics["accuracy", "test"] == found.after.values["accuracy"]
    assert metrics["macs", None] == 1.0
    origin = written.description["provenance"]
    assert origin["finetuned_from"]["id"] == bundle.description["id"]
    assert origin["scheme"] == plan.scheme.to_json()
    with np.load(images) as stored:
        answers = written.run(stored["x_test"])
    right = [a["label"] == str(y) for a, y in zip(answers, np.load(images)["y_test"], strict=True)]
    assert np.mean(right) == pytest.approx(found.after.values["accuracy"], abs=0.005)
    with pytest.raises(StorageError, match="exists already; choose another --out"):
        finetune_bundle(*given, tmp_path / "new", SilentReporter())
    again = finetune_bundle(*given, tmp_path / "again", SilentReporter())
    assert again.after.values == found.after.values


@pytest.mark.slow
def test_fine_tuning_refuses_a_plan_of_something_else(
    plan: FineTuningPlan, bundle: Bundle, images: Path, tmp_path: Path
) -> None:
    given = bundle, f"npz:{images}"
    settings, out = FineTuningSettings(1), (tmp_path / "new", SilentReporter())
    with pytest.raises(ConfigError, match="the plan is for another network"):
        finetune_bundle(*given, replace(plan, network="0"), settings, *out)
    with pytest.raises(ConfigError, match="the plan is for the optimizer sgd, not adam"):
        finetune_bundle(*given, plan, replace(settings, optimizer="adam"), *out)
    other = replace(plan, memory=replace(plan.memory, saved_bytes=1))
    with pytest.raises(ArtifactError, match=r"needs other memory .* plan again"):
        finetune_bundle(*given, other, settings, *out)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_plan_refuses_bundles_images_and_limits_that_do_not_fit(
    bundle: Bundle, images: Path, tmp_path: Path
) -> None:
    def refused(error: type[Exception], message: str, source: str, **changes: Any) -> None:
        with pytest.raises(error, match=message) as why:
            plan_finetuning(bundle, source, replace(OPTIONS, **changes), SilentReporter())
        assert "\n" not in str(why.value)

    quick = {"probe": FineTuningSettings(1)}
    refused(InfeasibleError, "the least is", f"npz:{images}", memory_bytes=10, **quick)
    refused(DataError, "smaller batch", f"npz:{images}", batch=5000)
    with np.load(images) as stored:
        few = {name: value[stored["y" + name[1:]] < 4] for name, value in stored.items()}
    np.savez(tmp_path / "few.npz", **few)
    refused(DataError, "has 4 classes", f"npz:{tmp_path / 'few.npz'}")
    copied = Path(shutil.copytree(bundle.folder, tmp_path / "values"))
    text = (copied / "bundle.json").read_text()
    (copied / "bundle.json").write_text(text.replace("class_scores", "label_scores"))
    with pytest.raises(ConfigError, match="gives label_scores; fine-tuning on a device is for"):
        plan_finetuning(Bundle.load(copied), f"npz:{images}", OPTIONS, SilentReporter())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory_bytes": 0}, "the memory has 0 bytes; expected at least 1"),
        ({"batch": 0}, "batch is 0; expected at least 1"),
    ],
)
def test_plan_options_refuse_wrong_values(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(OPTIONS, **wrong)  # type: ignore[arg-type]


def test_random_batches_are_all_images_of_an_epoch_in_the_order_of_the_seed() -> None:
    from hwnas.search import Split

    pixels = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    split = Split(pixels, np.arange(6), np.arange(6))
    preprocessing = Preprocessing(1, 1, 1, (0.0,), (1.0,))
    orders = []
    for seed in (0, 0, 1):
        batches = random_batches(split, preprocessing, 3, seed)
        orders.append([*next(batches)[1].tolist(), *next(batches)[1].tolist()])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(6))


@pytest.mark.slow
def test_stale_files_are_variants_and_converted_files(bundle: Bundle) -> None:
    assert stale_files(bundle) == []
    plain = bundle.description["artifacts"][0]
    int8 = {**plain, "files": ["model.int8.onnx"], "variant": "int8"}
    artifacts = [int8, *bundle.description["artifacts"]]
    swept = Bundle(bundle.folder, {**bundle.description, "artifacts": artifacts})
    assert stale_files(swept) == ["model.int8.onnx"]
