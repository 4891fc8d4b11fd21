"""The experts space: shared computation, paths of tasks, and their costs."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, VitSpace, experts
from hwnas.search_spaces.cost_model.workload import trace
from hwnas.search_spaces.space.task_paths import TaskPathSpace, path_macs

TASKS = {"kind": 4, "turn": 3, "side": 2}
SPACE = experts(
    *((8, 8, 1), 9),
    depth=(2, 3, 4),
    width=(16, 32),
    heads=(1, 2),
    mlp_ratio=(1, 2),
    patch_size=(4, 2),
    head_width=8,
    expert_every=1,
    tasks=TASKS,
)
ENDS = list(accumulate(TASKS.values(), initial=0))
COLUMNS = dict(zip(TASKS, (slice(*ends) for ends in pairwise(ENDS)), strict=True))
seeds = st.integers(0, 2**32 - 1)


def network_of(architecture: Architecture, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return SPACE.build(architecture).eval()


def with_experts(*assignments: str) -> Architecture:
    """Return the deepest narrow network with these experts in its four blocks."""
    values = {**SPACE.largest().as_dict(), "width": 16}
    chosen = {f"block{b}.experts": text for b, text in enumerate(assignments)}
    return SPACE.architecture({**values, **chosen})


@torch.no_grad()
def outputs_of(network: torch.nn.Module, images: Tensor) -> Tensor:
    return network(images)


@pytest.mark.slow
@settings(max_examples=8)
@given(seed=seeds)
def test_path_of_a_task_gives_its_outputs_of_the_whole_network(seed: int) -> None:
    architecture = SPACE.sample(random.Random(seed))
    network = network_of(architecture, seed)
    images = torch.randn(3, *SPACE.input_shape(architecture))
    whole = outputs_of(network, images)
    for task, columns in COLUMNS.items():
        paths, path = SPACE.path_space(task), SPACE.path_architecture(architecture, task)
        alone = paths.build(path).eval()
        alone.load_state_dict(SPACE.path_weights(architecture, task, network.state_dict()))
        torch.testing.assert_close(
            outputs_of(alone, images), whole[:, columns], rtol=1e-5, atol=1e-5
        )


@pytest.mark.slow
@settings(max_examples=5)
@given(seed=seeds)
def test_path_macs_are_those_of_a_trace_of_the_extracted_path(seed: int) -> None:
    architecture = SPACE.sample(random.Random(seed))
    shape = SPACE.input_shape(architecture)
    expected = {
        task: trace(
            SPACE.path_space(task).build(SPACE.path_architecture(architecture, task)), shape
        ).macs
        for task in TASKS
    }
    assert path_macs(SPACE, architecture) == expected


def test_path_costs_what_a_plain_transformer_of_its_sizes_costs() -> None:
    """A task's path has no gate and no expert of another task."""
    architecture = with_experts("abc", "aab", "abc", "aba")
    config = SPACE.path_space("turn").config
    plain, values = VitSpace(config.vit), architecture.as_dict()
    known = {choice.name for choice in plain.choices}
    same = plain.architecture({k: v for k, v in values.items() if k in known})
    assert path_macs(SPACE, architecture)["turn"] == plain.workload(same).macs


def test_network_computes_what_tasks_share_only_once() -> None:
    """Blocks are computed once until experts differ, then once for each group of tasks."""
    macs = [
        SPACE.workload(with_experts(*each)).macs
        for each in (
            ("aaa", "aaa", "aaa", "aaa"),
            ("aaa", "aaa", "aaa", "aab"),
            ("aaa", "aaa", "aaa", "abc"),
            ("aaa", "aaa", "abc", "aaa"),
            ("abc", "aaa", "aaa", "aaa"),
        )
    ]
    assert macs == sorted(set(macs))
    perceptron = macs[1] - macs[0]
    assert macs[2] - macs[0] == 2 * perceptron
    paths = path_macs(SPACE, with_experts("abc", "abc", "abc", "abc"))
    assert macs[4] < sum(paths.values()), "embedding and the first attention are shared"


def test_streams_do_not_join_where_experts_are_the_same_again() -> None:
    joined, apart = ("abc", "aaa", "aaa", "aaa"), ("abc", "abc", "abc", "abc")
    one, other = (SPACE.workload(with_experts(*each)) for each in (joined, apart))
    assert one.macs == other.macs
    assert one.params < other.params


def test_tasks_with_the_same_experts_depend_on_the_same_weights_only() -> None:
    architecture = with_experts("aaa", "aba", "aaa", "aab")
    network = network_of(architecture)
    images = torch.randn(2, *SPACE.input_shape(architecture))
    before = outputs_of(network, images)
    with torch.no_grad():
        for parameter in network.get_submodule("blocks.1.experts.b").parameters():
            parameter.add_(1.0)
    after = outputs_of(network, images)
    changed = {task: not torch.equal(before[:, at], after[:, at]) for task, at in COLUMNS.items()}
    assert changed == {"kind": False, "turn": True, "side": False}


def test_supernet_trains_the_experts_of_the_active_network_only() -> None:
    supernet = SPACE.supernet()
    architecture = with_experts("aaa", "aba", "aaa", "aaa")
    supernet.activate(architecture)
    supernet(torch.randn(2, *SPACE.input_shape(architecture))).sum().backward()
    trained = {
        name.partition(".norm")[0]
        for name, parameter in supernet.shared.named_parameters()
        if ".experts." in name and ".norm.weight" in name and parameter.grad is not None
    }
    assert trained == {f"blocks.{b}.experts.a" for b in range(4)} | {"blocks.1.experts.b"}


def test_counted_parameters_of_shared_experts_are_counted_once() -> None:
    networks = [with_experts("abc", "aaa", "aab", "aaa"), SPACE.smallest(), SPACE.largest()]
    codes = np.array([SPACE.encode(each) for each in networks])
    counted = SPACE.counted(codes)
    for row, architecture in enumerate(networks):
        built = SPACE.build(architecture)
        assert counted["params"][row] == sum(p.numel() for p in built.parameters())


def test_experts_space_refuses_an_unknown_task_in_one_line() -> None:
    assert isinstance(SPACE, TaskPathSpace)
    for use in (
        SPACE.path_space,
        lambda task: SPACE.path_weights(SPACE.smallest(), task, {}),
        lambda task: SPACE.path_architecture(SPACE.smallest(), task),
    ):
        with pytest.raises(ConfigError, match=r"unknown task 'turns'; did you mean 'turn'\?"):
            use("turns")


def test_experts_are_in_every_other_block_by_default() -> None:
    space = experts((8, 8, 1), 9, preset="tiny", tasks=TASKS)
    found = [choice.name for choice in space.choices if choice.name.endswith("experts")]
    assert found == ["block1.experts", "block3.experts"]
    dense = experts((8, 8, 1), 9, preset="tiny", experts=1, tasks=TASKS)
    assert not any(choice.name.endswith("experts") for choice in dense.choices)
