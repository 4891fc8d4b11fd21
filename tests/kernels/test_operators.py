"""The conformance suite of `hwnas.kernels.operator.Operator`, for every operator."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.operator import Operator, Sizes, dtype_name
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.suite.tolerance import in_float64, worst_error

CPU = torch.device("cpu")
CASES = [
    pytest.param(operator, sizes, dtype, id=f"{name}-{place}-{dtype_name(dtype)}")
    for name, operator in OPERATORS.items()
    for place, sizes in enumerate(operator.checked)
    for dtype in operator.dtypes
]
each_case = pytest.mark.parametrize(("operator", "sizes", "dtype"), CASES)
each_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)


def example(operator: Operator, sizes: Sizes, dtype: torch.dtype, seed: int = 0) -> dict[str, Any]:
    return operator.example(sizes, dtype, torch.Generator().manual_seed(seed), CPU)


def tensors(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def first(operator: Operator) -> dict[str, Any]:
    return example(operator, operator.checked[0], operator.dtypes[0])


@pytest.mark.slow
@each_case
def test_operator_equals_its_reference(
    operator: Operator, sizes: Sizes, dtype: torch.dtype
) -> None:
    inputs = example(operator, sizes, dtype)
    truth = operator.reference(**in_float64(inputs))
    for output, expected in zip(tensors(operator(**inputs)), tensors(truth), strict=True):
        assert output.shape == expected.shape
        assert worst_error(output, expected) <= 1


@each_case
def test_operator_default_config_keeps_the_constraints_of_each_gpu(
    operator: Operator, sizes: Sizes, dtype: torch.dtype
) -> None:
    for gpu in ACCELERATORS.values():
        problem = operator.problem(sizes, dtype, gpu)
        assert problem.broken(operator.default_config(sizes, dtype)) == []
        assert next(problem.solutions())


@each_case
def test_operator_sizes_equal_those_of_its_example(
    operator: Operator, sizes: Sizes, dtype: torch.dtype
) -> None:
    assert dict(operator.sizes(example(operator, sizes, dtype))) == dict(sizes)
    work = operator.work(sizes, dtype)
    assert work.moved_bytes > 0
    assert work.macs > 0


@pytest.mark.slow
@each_operator
def test_operator_equals_its_reference_in_other_configurations(operator: Operator) -> None:
    sizes, dtype = operator.checked[-1], operator.dtypes[0]
    inputs = example(operator, sizes, dtype)
    configs = list(operator.problem(sizes, dtype, ACCELERATORS["nvidia-h200"]).solutions())
    for config in (configs[0], configs[len(configs) // 2], configs[-1]):
        truth = operator.reference(**in_float64(inputs))
        for output, expected in zip(
            tensors(operator.run(inputs, config)), tensors(truth), strict=True
        ):
            assert worst_error(output, expected) <= 1, config


@pytest.mark.slow
@each_operator
def test_operator_gives_pytorch_its_output_shapes_on_meta_tensors(operator: Operator) -> None:
    inputs = first(operator)
    fakes = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in inputs.items()}
    for fake, real in zip(tensors(operator(**fakes)), tensors(operator(**inputs)), strict=True):
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())
    torch.library.opcheck(
        getattr(torch.ops.hwnas, operator.name).default,
        tuple(operator.bound(**inputs).values()),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.slow
@each_operator
def test_operator_accepts_tensors_that_are_not_contiguous(operator: Operator) -> None:
    inputs = first(operator)
    apart = {
        name: value.repeat_interleave(2, -1)[..., ::2] if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }
    for output, expected in zip(
        tensors(operator(**apart)), tensors(operator(**inputs)), strict=True
    ):
        assert torch.equal(output, expected)


@each_operator
def test_operator_refuses_a_dtype_that_it_does_not_support(
    operator: Operator,
) -> None:
    inputs = first(operator)
    name = next(iter(inputs))
    with pytest.raises(
        KernelError, match=f"does not take complex64; it takes {dtype_name(operator.dtypes[0])}"
    ):
        operator(**inputs | {name: inputs[name].to(torch.complex64)})


@each_operator
def test_operator_refuses_tensors_beyond_its_index_range(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.kernels.operator._MOST", 1)
    with pytest.raises(KernelError, match=f"{operator.name} .* use fewer {operator.batched}"):
        operator(**first(operator))


@each_operator
def test_operator_refuses_a_shape_that_does_not_fit(operator: Operator) -> None:
    inputs = first(operator)
    name = next(iter(inputs))
    with pytest.raises(KernelError, match=rf"{operator.name} takes .*given"):
        operator(**inputs | {name: inputs[name][..., :-1]})


@each_operator
def test_operator_refuses_a_further_tensor_of_the_wrong_dtype(
    operator: Operator,
) -> None:
    inputs = example(operator, operator.checked[-1], operator.dtypes[0])
    others = [name for name, value in inputs.items() if isinstance(value, Tensor)][1:]
    assert others
    for name in others:
        with pytest.raises(KernelError, match=f"takes {name} in .*; given float64"):
            operator(**inputs | {name: inputs[name].double()})
