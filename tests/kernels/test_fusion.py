"""Chains of elementwise steps fused into one kernel: results, sources, and refused chains."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.codegen import chain as chains
from hwnas.kernels.codegen.chain import Chain
from hwnas.kernels.codegen.fusion import fuse
from hwnas.kernels.codegen.generated import loaded
from hwnas.kernels.codegen.pieces import (
    BoundStep,
    activation,
    add,
    batch_norm,
    cast,
    clamp,
    dequantize,
    layer_norm,
    multiply,
    pixel_max,
    pixel_mean,
    pixel_sum,
    quantize,
    relu,
    relu6,
    scale_shift,
    sigmoid,
    softmax,
)
from hwnas.kernels.operator import Inputs
from hwnas.kernels.primitives.activations import ACTIVATIONS
from hwnas.kernels.suite.tolerance import in_float64, worst_error

CPU = torch.device("cpu")
PER = st.sampled_from(("value", "image", "channel"))
MIDDLE = st.one_of(
    st.builds(activation, st.sampled_from(sorted(ACTIVATIONS))),
    st.builds(scale_shift),
    st.builds(add, st.none(), PER),
    st.builds(multiply, st.none(), PER),
    st.just(clamp(-1, 1)),
    st.just(softmax()),
    st.just(layer_norm()),
)
FIRST = st.just([dequantize(1)])
REDUCTION = st.sampled_from((pixel_sum(), pixel_mean(), pixel_max())).map(lambda piece: [piece])
LAST = st.sampled_from((quantize(1), cast(torch.float16), cast(torch.float32))).map(lambda p: [p])
NONE: st.SearchStrategy[list[BoundStep]] = st.just([])
PIECES = st.tuples(
    NONE | FIRST, st.lists(MIDDLE, min_size=1, max_size=5), NONE | REDUCTION, NONE | LAST
).map(lambda parts: [piece for part in parts for piece in part])
SIZES = st.fixed_dictionaries(
    {"images": st.integers(1, 2), "pixels": st.integers(1, 30), "channels": st.integers(1, 20)}
)


@pytest.fixture(autouse=True, scope="module")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HWNAS_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def example(chain: Chain, sizes: dict[str, int], dtype: torch.dtype) -> Inputs:
    return chain.example(sizes, dtype, torch.Generator().manual_seed(0), CPU)


def error(chain: Chain, inputs: Inputs, config: dict[str, int] | None = None) -> float:
    return worst_error(chain.run(inputs, config), chain.reference(**in_float64(inputs)))


@pytest.mark.slow
@settings(max_examples=40)
@given(PIECES, SIZES, st.sampled_from(chains.FLOATS))
def test_chain_of_any_pieces_equals_its_reference(
    pieces: list[BoundStep], sizes: dict[str, int], dtype: torch.dtype
) -> None:
    chain = fuse(*pieces).chain
    inputs = example(chain, sizes, dtype if dtype in chain.dtypes else torch.int8)
    assert error(chain, inputs) <= 1


@settings(max_examples=20)
@given(PIECES, PIECES)
def test_chains_share_a_kernel_exactly_if_their_steps_are_equal(
    pieces: list[BoundStep], others: list[BoundStep]
) -> None:
    same = [piece.step for piece in pieces] == [piece.step for piece in others]
    assert (fuse(*pieces).source == fuse(*others).source) == same
    assert (fuse(*pieces).chain is fuse(*others).chain) == same


def test_chains_with_other_numbers_or_tensors_share_a_kernel() -> None:
    assert fuse(add(torch.ones(3)), clamp(0, 1)).chain is fuse(add(), clamp(-5, 5)).chain
    assert fuse(cast(torch.float16)).chain is not fuse(cast(torch.float32)).chain


@pytest.mark.parametrize("reduction", [pixel_sum(), pixel_mean(), pixel_max()])
@pytest.mark.parametrize("last", [(), (quantize(0.1, 5),)])
def test_chain_equals_its_reference_for_any_number_of_parts(
    reduction: BoundStep, last: tuple[BoundStep, ...]
) -> None:
    chain = fuse(relu(), scale_shift(), reduction, *last).chain
    sizes = {"images": 2, "pixels": 21, "channels": 5}
    inputs = example(chain, sizes, torch.float32)
    config = {"BLOCK_P": 4, "BLOCK_C": 8, "num_warps": 1, "num_stages": 1}
    for parts in (1, 2, 4):
        assert error(chain, inputs, config | {"PARTS": parts}) <= 1


def test_chain_equals_its_reference_in_other_configurations() -> None:
    chain = fuse(softmax(), multiply(per="image"), pixel_mean()).chain
    sizes = {"images": 1, "pixels": 11, "channels": 6}
    inputs = example(chain, sizes, torch.float32)
    problem = chain.problem(sizes, torch.float32, ACCELERATORS["nvidia-h200"])
    configs = list(problem.solutions())
    for config in (configs[0], configs[len(configs) // 2], configs[-1]):
        assert error(chain, inputs, config) <= 1, config


@settings(max_examples=20)
@given(PIECES, SIZES)
def test_chain_default_config_keeps_all_constraints(
    pieces: list[BoundStep], sizes: dict[str, int]
) -> None:
    chain = fuse(*pieces).chain
    wide = {name: size**3 for name, size in sizes.items()}
    for given_sizes in (sizes, wide):
        problem = chain.problem(given_sizes, torch.float16, ACCELERATORS["nvidia-h200"])
        assert problem.broken(chain.default_config(given_sizes, torch.float16)) == []


def test_chain_of_batch_norm_add_and_relu_equals_pytorch() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6).eval()
    norm.running_mean.copy_(torch.randn(6))
    norm.running_var.copy_(torch.rand(6) + 0.5)
    nn.init.normal_(norm.weight)
    x, residual = torch.randn(2, 6, 3, 5), torch.randn(2, 6, 3, 5)
    expected = torch.relu(norm(x) + residual).detach()

    fused = fuse(batch_norm(norm), add(), relu())
    nhwc = (0, 2, 3, 1)
    y = fused(x.permute(nhwc), residual.permute(nhwc))
    torch.testing.assert_close(y, expected.permute(nhwc))
    torch.testing.assert_close(fused.reference(x.permute(nhwc), residual.permute(nhwc)), y)


def test_chain_of_an_int8_activation_equals_pytorch_quantisation() -> None:
    x = torch.arange(-128, 128, dtype=torch.int8).reshape(1, 32, 8)
    exact = nn.functional.hardswish((x.float() - 3) * 0.05)
    expected = torch.fake_quantize_per_tensor_affine(exact, 0.0317, -100, -128, 127)
    y = fuse(dequantize(0.05, 3), activation("hard_swish"), quantize(0.0317, -100))(x)
    assert y.dtype == torch.int8
    torch.testing.assert_close((y.float() + 100) * 0.0317, expected)


def test_quantize_rounds_ties_to_even_and_maps_nan_to_the_zero_point() -> None:
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, 1e9, -torch.inf, torch.inf, torch.nan]])
    assert fuse(quantize(1, 2))(x).tolist() == [[2, 4, 4, 2, 127, -128, 127, 2]]


@pytest.mark.parametrize("make", [relu, relu6, sigmoid, softmax, pixel_max, pixel_mean])
def test_pieces_handle_nan_and_infinity_as_pytorch_does(make: Callable[[], BoundStep]) -> None:
    x = torch.tensor([[[torch.nan, 1.0, -torch.inf], [2.0, torch.inf, 3.0], [0.0, 1.0, 2.0]]])
    fused = fuse(make())
    torch.testing.assert_close(fused(x), fused.reference(x), equal_nan=True)


def test_fused_source_names_its_steps_and_is_stored_and_repaired(tmp_path: Path) -> None:
    source = fuse(batch_norm(nn.BatchNorm2d(4)), relu(), add(), quantize(0.1)).source
    steps = [line.strip() for line in source.splitlines() if "v = " in line or "# step" in line]
    assert steps[1:] == [
        "# step 0: scale_shift",
        "v = v * scale_0 + shift_0",
        "# step 1: relu",
        'v = activate(v, "relu")',
        "# step 2: add",
        "v = v + tl.load(other_2 + place, mask=inside, other=0).to(tl.float32)",
        "# step 3: quantize to int8",
        "v = quantized(v, scale_3, zero_point_3)",
    ]
    module = loaded(source, tmp_path)
    [path] = tmp_path.glob("*.py")
    assert module.__file__ == str(path)
    assert path.read_text() == source
    path.write_bytes(b"\xff damaged")
    loaded(source, tmp_path)
    assert path.read_text() == source


def test_fused_chain_is_one_operator_for_pytorch() -> None:
    fused = fuse(add(), pixel_mean(), cast(torch.float16))
    x = torch.randn(2, 3, 4, 5)
    fake = fused(x.to("meta"), x.to("meta"))
    assert (fake.shape, fake.dtype) == ((2, 5), torch.float16)
    operator = getattr(torch.ops.hwnas, fused.chain.name).default
    torch.library.opcheck(operator, (x, x), test_utils=("test_schema", "test_faketensor"))

    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return fused(x, x)

    nodes = torch.export.export(Module(), (x,)).graph.nodes
    assert [node.target for node in nodes if node.op == "call_function"] == [operator]


@pytest.mark.slow
def test_fused_kernels_compile_for_a_gpu_without_spills(tmp_path: Path) -> None:
    code = """
        import torch
        from hwnas.kernels.accelerator import ACCELERATORS
        from hwnas.kernels.codegen.fusion import fuse
        from hwnas.kernels.codegen.pieces import *
        from hwnas.kernels.resources import compile_ahead

        x, channels, gate = torch.empty(1, 56, 56, 24), torch.empty(24), torch.empty(1, 24)
        kept = fuse(scale_shift(channels, channels), silu(), clamp(0, 6), add(), cast(torch.half))
        reduced = fuse(
            dequantize(1), layer_norm(channels, channels), softmax(), multiply(gate, "image"),
            pixel_max(), quantize(1),
        )
        for launch in (*kept.launches(x, x), *reduced.launches(x.char())):
            resources = compile_ahead(launch, ACCELERATORS["nvidia-h200"])
            print(launch.kernel.__name__, resources.spilled_bytes)
    """
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=compiling | {"HWNAS_HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["fused_kernel 0", "fused_kernel 0", "finish_kernel 0"]


def test_fused_chain_runs_in_pytorch_with_a_warning_without_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hwnas.kernels.launch.interpreting", lambda: False)
    with pytest.warns(RuntimeWarning, match="Triton has no kernels for tensors on 'cpu'"):
        y = fuse(relu())(torch.tensor([[-1.0, 2.0]]))
    assert y.tolist() == [[0, 2]]


def test_fused_chain_refuses_wrong_operands_and_names_their_step() -> None:
    fused, x = fuse(relu(), add(), multiply(per="image")), torch.ones(2, 3, 4)
    with pytest.raises(KernelError, match=r"takes other of step 1 \(add\), other of step 2 \(mult"):
        fused(x, x)
    with pytest.raises(
        KernelError, match="besides x, the chain takes nothing; given 1 more tensor"
    ):
        fuse(relu())(x, x)
    with pytest.raises(KernelError, match=r"step 2 \(multiply\) takes floats \(2, 4\) as other"):
        fused(x, x, torch.ones(2, 1))
    with pytest.raises(KernelError, match=r"step 1 \(add\) .*; given int8 \(2, 3, 4\)"):
        fused(x, x.char(), torch.ones(2, 4))
    with pytest.raises(KernelError, match="does not take int8; it takes float16, bfloat16"):
        fuse(relu())(x.char())
    with pytest.raises(KernelError, match="up to 8192 channels; given 8193"):
        fuse(softmax())(torch.ones(1, 8193))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((), "a chain needs at least one piece"),
        ((relu(), dequantize(1)), r"step 1 \(dequantize\) cannot come after .*: it takes int8"),
        ((quantize(1), relu()), r"step 1 \(relu\) .* after step 0 \(quantize\): .* rounds"),
        ((pixel_mean(), cast(torch.float16), relu()), r"step 2 \(relu\) cannot come after step 1"),
        (
            (relu(), pixel_mean(), add()),
            r"step 2 \(add\) .* \(pixel_mean\): the step before it reduces the pixels",
        ),
        ((pixel_mean(), pixel_sum()), "the step before it reduces the pixels"),
        ((relu,), r"step 0 is .*, not a piece; call it"),
    ],
)
def test_fuse_refuses_sequences_of_pieces_that_do_not_fit(
    pieces: tuple[BoundStep, ...], message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        fuse(*pieces)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: activation("swish"), "'swish' is not one of none, relu"),
        (lambda: clamp(1, 0), "given 1 and 0"),
        (lambda: clamp(0, float("nan")), "given 0 and nan"),
        (lambda: quantize(0), "scale is 0 and zero_point 0"),
        (lambda: dequantize(0.1, 128), "a zero point is from -128 to 127"),
        (lambda: cast(torch.int8), "not torch.int8; see quantize"),
        (lambda: add(per="pixel"), "not 'pixel'"),
        (lambda: batch_norm(nn.BatchNorm2d(3, track_running_stats=False)), "no running statistics"),
    ],
)
def test_pieces_refuse_invalid_arguments(make: Callable[[], BoundStep], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        make()
