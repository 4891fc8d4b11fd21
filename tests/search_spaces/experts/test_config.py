"""Errors of wrong configurations of the experts space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hwnas.errors import ConfigError
from hwnas.search_spaces import ExpertsConfig, VitConfig, experts
from hwnas.search_spaces.registry import named_space

TASKS = {"kind": 4, "turn": 3}


def space_of(tasks: Mapping[str, int] = TASKS, **options: Any) -> Any:
    return experts((8, 8, 1), sum(tasks.values()), preset="tiny", tasks=tasks, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": 3}, "experts is 3, more than 2 tasks can use; expected 1 to 2"),
        ({"experts": 0}, "experts is 0; expected 1 to 2"),
        (
            {"tasks": {"kind": 7}, "experts": 2},
            "experts is 2, more than 1 task can use; expected 1, unless task.name is 'multi-task'",
        ),
        ({"expert_every": 0}, "expert_every is 0; expected 1 to 4, the largest depth"),
        ({"expert_every": 5}, "expert_every is 5; expected 1 to 4, the largest depth"),
        ({"activation": "relu"}, "activation is 'relu'; expected 'gelu' or 'piecewise-gelu'"),
        ({"tasks": {"kind": 6, "": 1}}, "task '' has a name with other characters than letters"),
        ({"tasks": {"a.b": 6, "turn": 1}}, r"task 'a\.b' has a name with other characters"),
        ({"tasks": {"kind": 7, "turn": 0}}, "task turn has 0 outputs; expected at least 1"),
        (
            {"tasks": dict.fromkeys("abcdefgh", 2), "experts": 8},
            "8 tasks can share 8 experts in 4140 ways, but a choice has at most 256 options",
        ),
        ({"heads": (5,), "head_width": 0}, "5 heads do not divide the width 64"),
    ],
)
def test_experts_refuses_wrong_options_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        space_of(**options)
    assert len(str(raised.value).splitlines()) == 1


def test_experts_refuses_outputs_that_belong_to_no_task() -> None:
    with pytest.raises(ConfigError, match="the tasks have 7 outputs together, but the networks 9"):
        experts((8, 8, 1), 9, tasks=TASKS)


def test_experts_refuses_a_transformer_that_merges_tokens() -> None:
    vit = VitConfig(
        (2,), (16,), (1,), merging=(0.2, 0), patch_size=(4,), resolution=(8,), outputs=7
    )
    with pytest.raises(ConfigError, match="leave rank and merging out"):
        ExpertsConfig(vit, (("kind", 4), ("turn", 3)))


def test_experts_refuses_a_task_twice() -> None:
    vit = VitConfig((2,), (16,), (1,), patch_size=(4,), resolution=(8,), outputs=7)
    with pytest.raises(ConfigError, match=r"\['kind', 'kind'\]; expected one or more, none"):
        ExpertsConfig(vit, (("kind", 4), ("kind", 3)))


def test_experts_are_as_many_as_the_tasks_by_default() -> None:
    assert space_of().config.experts == 2
    assert space_of({"kind": 3, "turn": 4, "side": 2}).config.experts == 3
    assert experts((8, 8, 1), 10).config.experts == 1


def test_recipe_gives_the_tasks_to_the_space() -> None:
    found = named_space("experts", (8, 8, 1), 7, {"experts": 2}, tasks=TASKS)
    assert found.config.tasks == (("kind", 4), ("turn", 3))  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"\[space\] has no key 'tasks'"):
        named_space("experts", (8, 8, 1), 7, {"tasks": {"one": 7}}, tasks=TASKS)
