"""Files of the machine of a run, on Ray nodes that do not share its disk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hwnas.search.engine.remote_files import fetch_folder, fetched, send

SEPARATE_DISKS = """
import json, os, subprocess
from pathlib import Path
from ray.cluster_utils import Cluster
import hwnas
import hwnas.search.data.loading
from hwnas.experiment.running import Experiment
from hwnas.search.engine.cluster import connected_ray
from hwnas.search.engine.placement import live_nodes

hwnas.search.data.loading._MAP_ABOVE = 0  # images are memory-mapped
disk = Path({disk!r})
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
start = f"mount -t tmpfs none {{disk}} && exec {{Path(sys.executable).parent}}/ray start " \\
    f"--address {{cluster.address}} --num-cpus 2 --block --disable-usage-stats"
node = subprocess.Popen(
    ["unshare", "--mount", "--propagation", "private", "sh", "-c", start],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
found = {{}}
try:
    with connected_ray(cluster.address):
        while len(live_nodes()) < 2:
            assert node.poll() is None
    for name, overrides in {runs!r}.items():
        run = Experiment.load(disk / "recipe.toml", overrides).run(
            disk / name, hwnas.SilentReporter(), cluster.address
        )
        rows = disk / name / "supernet/training.jsonl"
        found[name] = {{"trials": run.trials, "files": sorted(
            str(p.relative_to(disk / name)) for p in (disk / name).glob("*/*.safetensors")
        ), "rows": len(rows.read_text().splitlines()) if rows.exists() else 0,
        "scores": len((disk / name / "scores.jsonl").read_text().splitlines())}}
finally:
    node.terminate()
    node.wait(30)
    cluster.shutdown()
print(json.dumps(found))
"""


def _has_mount_namespaces() -> bool:
    command = ["unshare", "--mount", "--propagation", "private", "true"]
    return shutil.which("unshare") is not None and not subprocess.run(command).returncode


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    "evaluators",
    [["supernet", "train"], pytest.param(["grow"], marks=pytest.mark.exhaustive)],
    ids=lambda evaluators: "-".join(evaluators),
)
def test_search_uses_machines_that_do_not_share_its_disk(
    evaluators: list[str],
    quick_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run_script: Callable[..., Any],
) -> None:
    """All workers are on the second node, where the folder of the run and the cache are empty."""
    if not _has_mount_namespaces():
        pytest.skip("only root can hide a folder from a process")
    disk = tmp_path / "disk"
    monkeypatch.setenv("HWNAS_HOME", str(disk / "home"))
    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        path = disk / f"images/{label}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype(np.uint8)).save(path)
    shutil.copy(quick_recipe, disk / "recipe.toml")
    images = ["data.source=folder:images", "data.train_limit=300", "search.workers=2"]
    alone = [*images, "search.trials=4", "search.batch=2"]
    runs = {
        "supernet": [*images, "train.workers=1"],
        "train": [*alone, 'search.evaluator="train"'],
        "grow": [*alone, 'search.evaluator="grow"'],
    }
    runs = {name: runs[name] for name in evaluators}
    found = run_script(SEPARATE_DISKS, disk=str(disk), runs=runs)
    for name, run in found.items():
        assert run["trials"] == run["scores"] == (8 if name == "supernet" else 4)
        files = set(run["files"])
        if name == "supernet":
            assert run["rows"] >= 1, "the training curve came back"
            assert {f"supernet/{x}.safetensors" for x in ("weights", "checkpoint")} <= files
        else:
            weights = [file for file in files if file.startswith("evaluator/")]
            assert len(weights) >= 4, "the weights of all candidates came back"


def test_files_of_a_process_without_ray_are_used_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    assert not fetched(file)
    file.write_text("here")
    assert fetched(file)
    send(file)
    fetch_folder(tmp_path, "*")
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]
