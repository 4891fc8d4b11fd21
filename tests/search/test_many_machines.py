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
from node_of import Where, process_of, quick

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1}})
second = cluster.add_node(num_cpus=1)
third = None
told = []

with connected_ray(cluster.address, [Path({here!r})]):
    def on_trial(trial, complete):
        global third
        told.append(complete)
        if complete == 12:
            cluster.remove_node(second, allow_graceful=False)
        if complete == 20:
            third = cluster.add_node(num_cpus=1)

    actors = RayActors(Where(), 3)
    result = run_search(
        Dials(), [Objective("accuracy", "maximize"), Objective("params", "minimize")], actors,
        SearchOptions(trials=110, batch=4), storage=StudyStorage(Path({folder!r}) / "study.db"),
        callbacks=SearchCallbacks(on_trial),
    )
    actors.close()
    nodes = [int(t.standard_errors["node"]) for t in result.trials]
    here = list(map_tasks(process_of, None, [()] * 4, 2))
    driver = quick()
print(json.dumps({{"nodes": nodes, "failed": len(result.failed), "told": told,
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
    assert found["told"] == list(range(1, 111)), "no trial was lost, none was told twice"
    assert found["failed"] == 0, "that a node dies is no fault of the candidate"
    early, late = set(found["nodes"][:8]), set(found["nodes"][-16:])
    assert len(early) == 2, "both nodes worked"
    assert len(set(found["nodes"])) == 3, "the node that joined got work, too"
    assert early - late, "the node that left did no more"
    assert found["tasks"] == [found["driver"]], "what writes files runs where they are"


def test_connected_ray_names_an_address_without_a_cluster() -> None:
    if any("raylet" in (process.info["name"] or "") for process in process_iter(["name"])):
        pytest.skip("another test has started Ray on this machine, which 'auto' would find")
    with (
        pytest.raises(ConfigError, match="no Ray cluster can be used at 'auto' "),
        connected_ray("auto"),
    ):
        pass
