"""Resources of the workers that train together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search.training.placement import WorkerResources, worker_resources


def cluster(*cpus: float, gpus: tuple[int, ...] = ()) -> list[dict[str, float]]:
    given = (*gpus, *[0] * (len(cpus) - len(gpus)))
    return [{"CPU": cpu, "GPU": gpu} for cpu, gpu in zip(cpus, given, strict=True)]


def test_workers_share_the_cpus_of_one_node() -> None:
    assert worker_resources(cluster(8), 2) == WorkerResources(4, 0)
    assert worker_resources(cluster(8), 3) == WorkerResources(2, 0)
    assert worker_resources([{"CPU": 2.0}], 2) == WorkerResources(1, 0)


def test_no_worker_is_larger_than_a_node() -> None:
    """Regression test: two workers of three CPUs each waited for ever for nodes of two."""
    assert worker_resources(cluster(2, 2, 2), 2) == WorkerResources(2, 0)
    assert worker_resources(cluster(2, 2, 2), 4) == WorkerResources(1, 0)


def test_workers_use_the_gpus_of_the_cluster_although_the_head_has_none() -> None:
    assert worker_resources(cluster(4, 16, 16, gpus=(0, 2, 2)), 4) == WorkerResources(8, 1)
    assert worker_resources(cluster(64, 8, gpus=(0, 1)), 1) == WorkerResources(8, 1)


@pytest.mark.parametrize(
    ("nodes", "workers", "told"),
    [
        (cluster(2, 2, 2), 7, r"CPUs for 6 \(2 \+ 2 \+ 2\); set train\.workers to at most 6"),
        (cluster(8, 8, gpus=(1, 1)), 3, r"GPUs for 2 \(1 \+ 1\)"),
        (cluster(8, 8, gpus=(0, 1)), 2, r"GPUs for 1 \(1\)"),
        (cluster(1, gpus=(4,)), 2, r"GPUs for 1 \(4\)"),
    ],
)
def test_more_workers_than_places_are_refused(
    nodes: list[dict[str, float]], workers: int, told: str
) -> None:
    with pytest.raises(ConfigError, match=rf"train\.workers is {workers}, but .*{told}"):
        worker_resources(nodes, workers)


@given(cpus=st.lists(st.integers(0, 64), min_size=1, max_size=8), workers=st.integers(1, 20))
def test_all_workers_fit_and_larger_ones_would_not(cpus: list[int], workers: int) -> None:
    def places(each: int) -> int:
        return sum(cpu // each for cpu in cpus)

    if places(1) < workers:
        with pytest.raises(ConfigError):
            worker_resources(cluster(*cpus), workers)
        return
    each = worker_resources(cluster(*cpus), workers).cpus
    assert places(each) >= workers > places(each + 1)
