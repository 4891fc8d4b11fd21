"""Resources of workers that train together, and of workers that evaluate candidates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search.engine.placement import (
    WorkerResources,
    check_request,
    evaluator_resources,
    training_resources,
)


def cluster(*cpus: float, gpus: tuple[int, ...] = ()) -> list[dict[str, float]]:
    given = (*gpus, *[0] * (len(cpus) - len(gpus)))
    return [{"CPU": cpu, "GPU": gpu} for cpu, gpu in zip(cpus, given, strict=True)]


def test_workers_share_the_cpus_of_one_node() -> None:
    assert training_resources(cluster(8), 2) == WorkerResources(4, 0)
    assert training_resources(cluster(8), 3) == WorkerResources(2, 0)
    assert training_resources([{"CPU": 2.0}], 2) == WorkerResources(1, 0)


def test_no_worker_is_larger_than_a_node() -> None:
    """Regression test: two workers of three CPUs each waited for ever for nodes of two."""
    assert training_resources(cluster(2, 2, 2), 2) == WorkerResources(2, 0)
    assert training_resources(cluster(2, 2, 2), 4) == WorkerResources(1, 0)


def test_workers_use_the_gpus_of_the_cluster_although_the_head_has_none() -> None:
    assert training_resources(cluster(4, 16, 16, gpus=(0, 2, 2)), 4) == WorkerResources(8, 1)
    assert training_resources(cluster(64, 8, gpus=(0, 1)), 1) == WorkerResources(8, 1)


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
        training_resources(nodes, workers)


@given(cpus=st.lists(st.integers(0, 64), min_size=1, max_size=8), workers=st.integers(1, 20))
def test_all_workers_fit_and_larger_ones_would_not(cpus: list[int], workers: int) -> None:
    def places(each: int) -> int:
        return sum(cpu // each for cpu in cpus)

    if places(1) < workers:
        with pytest.raises(ConfigError):
            training_resources(cluster(*cpus), workers)
        return
    each = training_resources(cluster(*cpus), workers).cpus
    assert places(each) >= workers > places(each + 1)


def test_training_workers_get_the_resources_that_a_recipe_requests() -> None:
    nodes = cluster(8, 8, gpus=(2, 0))
    assert training_resources(nodes, 2) == WorkerResources(4, 1)
    assert training_resources(nodes, 2, gpus=0) == WorkerResources(8, 0)
    assert training_resources(nodes, 2, cpus=1) == WorkerResources(1, 1)


@pytest.mark.parametrize(
    ("cpus", "gpus", "told"),
    [
        (3, None, r"CPUs for 0 workers of 3 CPUs each \(2 \+ 2\); lower train\.cpus_per_worker"),
        (None, 1, r"GPUs for 0 \(none\); set train\.gpus_per_worker = 0"),
        (2, 0, r"CPUs for 2 workers of 2 CPUs each \(2 \+ 2\); set train\.workers to at most 2"),
    ],
)
def test_training_workers_that_request_too_much_are_refused(
    cpus: int | None, gpus: float | None, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        training_resources(cluster(2, 2), 4, cpus, gpus)


def test_evaluators_share_all_gpus_of_the_cluster() -> None:
    assert evaluator_resources(cluster(2, 2), 64) == WorkerResources(1, 0)
    assert evaluator_resources(cluster(64, gpus=(4,)), 4) == WorkerResources(1, 1)
    assert evaluator_resources(cluster(4, 64, gpus=(0, 2)), 3) == WorkerResources(1, 0.5)
    assert evaluator_resources(cluster(64, gpus=(1,)), 64) == WorkerResources(1, 0.125)
    assert evaluator_resources(cluster(8, gpus=(1,)), 4, cpus=2, gpus=0) == WorkerResources(2, 0)


@given(gpus=st.lists(st.integers(0, 8), min_size=1, max_size=5), workers=st.integers(1, 100))
def test_evaluators_all_run_at_once_unless_a_gpu_has_eight(gpus: list[int], workers: int) -> None:
    share = evaluator_resources(cluster(*[64] * len(gpus), gpus=tuple(gpus)), workers).gpus
    on_each = int(1 / share) if share else 0
    assert (share > 0) == (sum(gpus) > 0)
    assert on_each == 8 or on_each * sum(gpus) >= workers or not sum(gpus)


@pytest.mark.parametrize(
    ("cpus", "gpus", "told"),
    [
        (4, None, "needs 4 CPUs and 0 GPUs, but no node .* has so many .2 CPUs and 0 GPUs.;"),
        (None, 0.5, "needs 1 CPU and 0.5 GPUs, .*lower search.cpus_per_worker or search.gpus"),
    ],
)
def test_evaluators_that_request_more_than_a_node_has_are_refused(
    cpus: int | None, gpus: float | None, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        evaluator_resources(cluster(2, 2), 2, cpus, gpus)


@pytest.mark.parametrize(
    ("cpus", "gpus", "together", "told"),
    [
        (0, None, False, "search.cpus_per_worker is 0; expected at least 1"),
        (
            1,
            -0.5,
            False,
            "search.gpus_per_worker is -0.5; expected 0, a share of a GPU, or",
        ),
        (1, 1.5, False, "search.gpus_per_worker is 1.5"),
        (1, float("inf"), False, "search.gpus_per_worker is inf"),
        (1, float("nan"), False, "search.gpus_per_worker is nan"),
        (1, -2.0, False, "search.gpus_per_worker is -2"),
        (1, 0.5, True, "search.gpus_per_worker is 0.5; expected 0 or 1"),
        (1, 2, True, "search.gpus_per_worker is 2; expected 0 or 1"),
    ],
)
def test_check_request_refuses_numbers_that_no_worker_can_get(
    cpus: int, gpus: float | None, together: bool, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        check_request("search", cpus, gpus, together)
