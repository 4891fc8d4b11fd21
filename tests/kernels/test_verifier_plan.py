"""Inputs of the verifier: sizes, options, values; and state that a kernel keeps between calls."""

import itertools
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from hwnas.kernels.verifier import ForkServer
from hwnas.kernels.verifier.calls import CallOutcome, KernelCall
from hwnas.kernels.verifier.candidate import read_rules
from hwnas.kernels.verifier.fork_server import JobLimits
from hwnas.kernels.verifier.judging import Result, error
from hwnas.kernels.verifier.plan import CheckedInputs, VerificationCall
from hwnas.kernels.verifier.process.lasting import moving
from hwnas.kernels.verifier.process.memory import laid
from hwnas.kernels.verifier.specification import ExpectedOutputs, FileSpecification
from hwnas.kernels.verifier.variations import (
    all_options,
    large_sizes,
    largest_sizes,
    on_a_grid,
    similar_inputs,
)

LISTED = ({"rows": 8, "columns": 8}, {"rows": 16, "columns": 16})


def test_large_sizes_mix_whole_and_partial_blocks_in_each_dimension() -> None:
    tried = [sizes[0] for _, sizes in large_sizes(LISTED, Random(0))]
    for name in ("rows", "columns"):
        for least in (64, 256, 1024):
            lengths = [each[name] for each in tried if least <= each[name] <= 2 * least]
            assert any(length % 32 == 0 for length in lengths)
            assert any(length % 2 for length in lengths)
    both = [each for each in tried if min(each.values()) > 150]
    assert any(each["rows"] * each["columns"] > 2**16 for each in both)
    assert any(length % 64 == 0 for each in both for length in each.values())
    assert all(max(each[0].values()) > 4096 for each in largest_sizes(LISTED, Random(0)))


def test_all_options_combines_every_pair_of_options() -> None:
    values = {"activation": ["none", "relu"], "first": [False, True], "scale": [1.0, 2.0]}
    inputs = {"activation": "none", "first": False, "scale": 1.0}
    for seed in range(5):
        made = [
            each for _, each in all_options(inputs, values, Random(seed), alone=True, together=0)
        ]
        for one, other in itertools.combinations(values, 2):
            both = {(each[one], each[other]) for each in made}
            assert (values[one][1], values[other][1]) in both


def test_similar_inputs_include_different_inputs_with_the_same_sums() -> None:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    base = on_a_grid({"x": x})

    def sums(of: Tensor) -> list[Any]:
        return [of.sum().item(), of.square().sum().item(), of.sum(0).tolist(), of.sum(1).tolist()]

    same = {0: 0, 1: 0, 2: 0, 3: 0}
    for _, inputs in similar_inputs(base, Random(0)):
        for place, (one, other) in enumerate(zip(sums(base["x"]), sums(inputs["x"]), strict=True)):
            same[place] += one == other and not torch.equal(base["x"], inputs["x"])
    assert min(same.values()) > 0


def test_laid_gives_the_strides_of_each_layout() -> None:
    like = torch.randn(2, 3, 4, 5)
    for layout, strides in (
        ("channels last", like.to(memory_format=torch.channels_last).stride()),
        ("reversed", (1, 2, 6, 24)),
        ("transposed", (20, 40, 5, 1)),
        ("apart", (120, 40, 10, 2)),
    ):
        assert laid(like, layout).stride() == strides  # type: ignore[arg-type]


def test_error_allows_a_kernel_the_float32_error_of_pytorch() -> None:
    x, exact = torch.ones(3), torch.ones(3, dtype=torch.float64)
    question = CheckedInputs("", {"n": 3}, torch.float32, 0, {"x": x})
    trial = VerificationCall("values", question, KernelCall({"x": x}, "slot"))
    truth = ExpectedOutputs((exact,), (x + 1e-3,), (torch.float32,))
    assert error(Result(trial, CallOutcome((x - 1e-3,)), truth)) <= 1
    assert error(Result(trial, CallOutcome((x - 3e-3,)), truth)) > 1
    sure = ExpectedOutputs((exact,), (x,), (torch.float32,))
    assert error(Result(trial, CallOutcome((x - 1e-3,)), sure)) > 1


RULES = """
sizes = ({"rows": 8},)
dtypes = ("float32",)


def inputs(sizes, dtype, generator): ...


TABLE = {"right": 1}


def reference(x, bias, kind, way, power, rows, eps):
    if "add" == kind or TABLE.get(way):
        ...
    match way:
        case "up" | "down":
            ...
"""


def test_specification_finds_option_values_in_any_comparison(tmp_path: Path) -> None:
    path = tmp_path / "rules.py"
    path.write_text(RULES)
    rules = FileSpecification(read_rules(path), ForkServer(torch.device("cpu")), JobLimits())
    x, bias = torch.randn(8, 4), torch.randn(4)
    inputs = {"x": x, "bias": bias, "kind": "none", "way": "left", "power": 3, "rows": 8}
    inputs |= {"eps": 1e-5}
    options = rules.options(inputs)
    assert options["kind"] == ["none", "add"]
    assert set(options["way"]) == {"left", "right", "up", "down"}
    assert max(options["eps"]) > 0.5  # a smaller change would not be visible in the outputs
    guesses = rules.guesses(inputs, {"rows": 8})
    assert guesses["bias"] == [None]
    assert guesses["power"] == [4, 6]
    assert guesses["rows"] == []


COUNTERS = """
import itertools
calls, numbers = [0], itertools.count()
def generator():
    n = 0
    while True:
        n += 1
        yield n
turns = generator()
class Kept:
    n = 0
held, buffers, table = Kept(), [0, 1], {}
def bump():
    calls[0] += 1
    next(numbers), next(turns)
    held.n += 1
    buffers.reverse()
    table[3] = "packed"
def once(known=[]):
    known[:] = [len(known)]
"""


def test_moving_finds_call_counters_but_not_stored_values(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(COUNTERS, "counters.py", "exec"), names)
    names["bump"]()
    found = moving(names["bump"], names, ("counters.py",))
    assert found == ["calls", "held", "numbers", "turns"]
    names["once"]()
    assert "once" not in moving(names["once"], names, ("counters.py",))


@pytest.mark.parametrize("value", [[0] * 100_000, torch.zeros(3_000_000), "text" * 1000])
def test_moving_finds_nothing_in_large_stored_values(value: Any) -> None:
    assert moving(lambda: None, {"kept": value}, ()) == []
