"""Searches on a cluster of several Ray nodes, all simulated on one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from psutil import process_iter

from hwnas.errors import ConfigError
from hwnas.search.engine.cluster import connected_ray

HERE = Path(__file__).parent

ON_TWO_NODES = """
import json, os, sys
sys.path.insert(0, {here!r})
from pathlib import Path
from ray.cluster_utils import Cluster
from hwnas.search import Objective, RayActors, SearchCallbacks, SearchOptions, StudyStorage
from hwnas.search import run_search
from hwnas.search.engine.cluster import connected_ray, map_tasks
from own_parts import Dials
from node_of import Where, number_of, process_of, quick

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1}})
second = cluster.add_node(num_cpus=1)
left = number_of(second.node_id)
hurry = Path({folder!r}) / "hurry"
nodes, told, left_at = [], [], None

with connected_ray(cluster.address, [Path({here!r})]):
    def on_trial(trial, complete):
        global left_at
        told.append(complete)
        nodes.append(int(trial.standard_errors["node"]))
        if left_at is None and len(set(nodes)) == 2:
            cluster.remove_node(second, allow_graceful=False)
            left_at = complete
        if left_at and complete == left_at + 8:
            cluster.add_node(num_cpus=1)
        if len(set(nodes)) == 3:
            hurry.touch()

    actors = RayActors(Where(hurry=hurry), 3)
    result = run_search(
        Dials(), [Objective("accuracy", "maximize"), Objective("params", "minimize")], actors,
        SearchOptions(trials=300, batch=4), storage=StudyStorage(Path({folder!r}) / "study.db"),
        callbacks=SearchCallbacks(on_trial),
    )
    actors.close()
    here = list(map_tasks(process_of, None, [()] * 4, 2))
    driver = quick()
print(json.dumps({{"nodes": nodes, "left": left, "failed": len(result.failed), "told": told,
                  "tasks": sorted(set(here)), "driver": driver}}))
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.ray
def test_search_continues_while_nodes_leave_and_join(tmp_path: Path) -> None:
    import json

    script = ON_TWO_NODES.format(here=str(HERE), folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["told"] == list(range(1, 301)), "no trial was lost, none was told twice"
    assert found["failed"] == 0, "that a node dies is no fault of the candidate"
    assert len({*found["nodes"]}) == 3, "both nodes worked, and the one that joined"
    assert found["left"] in found["nodes"]
    assert found["left"] not in found["nodes"][-16:], "the node that left did no more"
    assert found["tasks"] == [found["driver"]], "what writes files runs where they are"


def test_connected_ray_names_an_address_without_a_cluster() -> None:
    if any("raylet" in (process.info["name"] or "") for process in process_iter(["name"])):
        pytest.skip("another test has started Ray on this machine, which 'auto' would find")
    with (
        pytest.raises(ConfigError, match="no Ray cluster can be used at 'auto' "),
        connected_ray("auto"),
    ):
        pass
