"""Devices of evaluations and trainings, on a GPU that refuses CPU tensors; see `strict_device`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hwnas.search.engine.devices import device_here, on_device, working_device


def test_working_device_is_the_cpu_unless_a_context_says_otherwise() -> None:
    assert working_device() == torch.device("cpu")
    with on_device("meta"):
        with on_device("cpu"):
            assert working_device() == torch.device("cpu")
        assert working_device() == torch.device("meta")
    assert working_device() == torch.device("cpu")
    with pytest.raises(ZeroDivisionError), on_device("meta"):
        raise ZeroDivisionError
    assert working_device() == torch.device("cpu")


def test_device_here_is_the_cpu_if_a_recipe_asks_for_no_gpu() -> None:
    assert device_here(0) == torch.device("cpu")


ONE_PROCESS = """
import json
import strict_device
import hwnas
from pathlib import Path

found = {{}}
for name, settings in {runs!r}.items():
    strict_device.CALLS.clear()
    run = hwnas.search_recipe(
        {recipe!r}, path=Path({folder!r}, name), settings=settings, reporter=hwnas.SilentReporter()
    )
    calls = dict(strict_device.CALLS)
    front = sorted(row.values["accuracy"] for row in run.front)
    found[name] = {{"calls": calls, "front": front}}
print(json.dumps(found))
"""
ON_CPU = {"compute.gpus_per_worker": 0}


@pytest.mark.slow
def test_search_trains_evaluates_and_fine_tunes_on_the_gpu(
    quick_recipe: Path, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    """Nothing of it meets a CPU tensor, and the networks of the front are those of the CPU."""
    alone = {"search.evaluator": "train", "search.trials": 3, "train.ema": 0.9}
    runs = {
        "supernet": {"train.ranking_check": 4, "train.clip_norm": 5.0},
        "train": alone,
        "grow": {"search.evaluator": "grow", "search.trials": 3},
    }
    runs |= {f"{name} on the CPU": settings | ON_CPU for name, settings in runs.items()}
    found = run_script(ONE_PROCESS, runs=runs, recipe=str(quick_recipe), folder=str(tmp_path))
    for name in ("supernet", "train", "grow"):
        on_gpu, on_cpu = found[name], found[f"{name} on the CPU"]
        assert on_gpu["calls"]["convolution_backward"] > 100
        assert on_gpu["front"] == pytest.approx(on_cpu["front"], abs=0.03)
        assert not on_cpu["calls"]


CLUSTER = """
import json
from pathlib import Path
import own_parts, node_of, strict_device
from ray.cluster_utils import Cluster
from hwnas.errors import DeviceError
from hwnas.search import RayActors
from hwnas.search.engine.cluster import connected_ray, map_tasks
from hwnas.search.engine.placement import evaluator_resources, live_nodes
from hwnas.search.evaluation.scoring import Fidelity
from hwnas.search_spaces import Candidate

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1, "num_gpus": 0}})
cluster.add_node(num_cpus=2, num_gpus=1)
space = own_parts.Dials()
candidates = [Candidate.of(space.smallest()), Candidate.of(space.largest())]
with connected_ray(cluster.address, [Path({here!r})]):
    each = evaluator_resources(live_nodes(), 2)
    devices = {{}}
    for gpus in (each.gpus, 0):
        actors = RayActors(strict_device.DeviceOf(), 2, gpus=gpus)
        outcomes = [found for _, found in actors.map(candidates, Fidelity())]
        devices[gpus] = [found.standard_errors["strict"] for found in outcomes]
        actors.close()
    tasks = list(map_tasks(strict_device.device_of, None, [()], 1, None))
    actors = RayActors(node_of.Where(), 1, gpus=1)  # without the module of the device
    try:
        list(actors.map(candidates, Fidelity()))
    except DeviceError as error:
        refused = str(error)
print(json.dumps({{"share": each.gpus, "devices": list(devices.values()), "tasks": tasks,
                  "refused": refused}}))
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_workers_use_the_gpus_of_a_cluster_whose_head_has_none(
    run_script: Callable[..., Any],
) -> None:
    found = run_script(CLUSTER)
    assert found["share"] == 0.5, "two workers share the only GPU"
    assert found["devices"] == [[1.0, 1.0], [0.0, 0.0]]
    assert found["tasks"] == ["cpu"], "tasks run on the head, which has no GPU"
    assert "PyTorch finds none there" in found["refused"]
