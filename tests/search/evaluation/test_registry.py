from __future__ import annotations

import inspect

import pytest

from hwnas.search import EVALUATORS

GIVEN = {"space", "task", "data", "train", "seed", "weights", "folder"}


@pytest.mark.parametrize("name", EVALUATORS)
def test_evaluator_needs_only_arguments_that_a_run_has(name: str) -> None:
    parameters = inspect.signature(EVALUATORS[name]).parameters
    needed = {key for key, value in parameters.items() if value.default is value.empty}
    assert needed <= GIVEN
