"""Register spills of default configurations at the sizes of searched networks.

The kernels are compiled ahead of time, which needs no GPU. The small sizes of `Operator.checked`
do not cover the blocks that only large feature maps use.
"""

import pytest
import torch

from hwnas.kernels.accelerator import ACCELERATORS, Accelerator
from hwnas.kernels.operator import Operator
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.sizes import sizes_read
from hwnas.kernels.suite.cases import Case
from hwnas.kernels.suite.correctness import compiled_suite

SIZES = {
    "pointwise": (
        "images=1,pixels=3136,inputs=24,outputs=144",
        "images=1,pixels=196,inputs=480,outputs=112,residual=1",
        "images=1,pixels=49,inputs=960,outputs=160,gate=1,residual=1",
    ),
    "depthwise": (
        "images=1,height=56,width=56,channels=144,kernel=3,stride=2",
        "images=1,height=14,width=14,channels=480,kernel=5,stride=1,sums=1",
        "images=1,height=7,width=7,channels=960,kernel=7,stride=1,sums=1",
    ),
    "depthwise_pointwise": (
        "images=1,height=56,width=56,inputs=144,outputs=24,kernel=3,stride=1,residual=1",
        "images=1,height=28,width=28,inputs=240,outputs=80,kernel=5,stride=2",
        "images=1,height=14,width=14,inputs=480,outputs=112,kernel=7,stride=1",
    ),
    "inverted_bottleneck": (
        "images=1,height=56,width=56,inputs=24,hidden=144,outputs=40,kernel=5,stride=2",
        "images=1,height=14,width=14,inputs=112,hidden=672,outputs=112,kernel=3,stride=1,residual=1",
        "images=1,height=7,width=7,inputs=160,hidden=960,outputs=160,kernel=5,stride=1,squeezed=240",
        "images=8,height=56,width=56,inputs=24,hidden=96,outputs=40,kernel=5,stride=1",
    ),
    "int8_pointwise": (
        "rows=3136,inputs=24,outputs=144",
        "rows=196,inputs=480,outputs=112,residual=1",
        "rows=49,inputs=960,outputs=160,residual=1,table=1",
        "rows=12544,inputs=16,outputs=64,table=1",
    ),
    "int8_depthwise": (
        "images=1,height=56,width=56,channels=144,kernel=3,stride=2",
        "images=1,height=14,width=14,channels=480,kernel=5,stride=1,table=1",
        "images=1,height=7,width=7,channels=960,kernel=7,stride=1,table=1",
    ),
    "int8_convolution": (
        "images=1,height=224,width=224,inputs=3,outputs=16,kernel=3,stride=2,table=1",
        "images=1,height=56,width=56,inputs=64,outputs=64,kernel=3,stride=1,residual=1",
        "images=1,height=14,width=14,inputs=96,outputs=192,kernel=3,stride=2",
    ),
    "convolution": (
        "images=1,height=224,width=224,inputs=3,outputs=16,kernel=3,stride=2",
        "images=1,height=56,width=56,inputs=24,outputs=40,kernel=3,stride=2",
        "images=1,height=14,width=14,inputs=96,outputs=96,kernel=3,stride=1,residual=1",
    ),
    "norm_linear": (
        "rows=196,inputs=192,outputs=576",
        "rows=196,inputs=768,outputs=192,residual=1",
        "rows=49,inputs=184,outputs=736",
    ),
    "softmax": ("rows=588,channels=196", "rows=128,channels=32000", "rows=49,channels=49"),
    "attention": (
        "images=1,queries=196,keys=196,heads=3,width=64",
        "images=1,queries=49,keys=196,heads=6,width=32",
        "images=1,queries=49,keys=49,heads=4,width=128",
    ),
    "slim_attention": (
        "images=1,pixels=49,inputs=128,heads=4,width=32,bias=1",
        "images=1,pixels=196,inputs=192,heads=3,width=64",
    ),
    "recurrent": (
        "sequences=1,steps=100,gates=4,heads=4,width=64,initial=1",
        "sequences=1,steps=100,gates=3,heads=2,width=128",
        "sequences=32,steps=100,gates=4,heads=1,width=128",
    ),
    "block_sparse": (
        "rows=196,inputs=192,outputs=768,height=32,width=32,blocks=72",
        "rows=196,inputs=768,outputs=192,height=64,width=64,blocks=18",
    ),
    "two_four": (
        "rows=196,inputs=192,outputs=768",
        "rows=49,inputs=960,outputs=160",
        "rows=3136,inputs=24,outputs=144",
    ),
}
SIZES["im2win"] = SIZES["convolution"]
IN_CI = {("inverted_bottleneck", "nvidia-h200"), ("int8_pointwise", "nvidia-a100")}


CASES = [
    pytest.param(
        OPERATORS[name],
        ACCELERATORS[gpu],
        id=f"{name}-{gpu}",
        marks=pytest.mark.slow if (name, gpu) in IN_CI else pytest.mark.exhaustive,
    )
    for name in OPERATORS
    for gpu in ("nvidia-a100", "nvidia-h200")
]


@pytest.mark.parametrize(("operator", "gpu"), CASES)
def test_operators_spill_no_registers_at_the_sizes_of_real_networks(
    operator: Operator, gpu: Accelerator
) -> None:
    cases = [
        Case(operator.name, operator, dtype, sizes_read(operator, text))
        for text in SIZES[operator.name]
        for dtype in operator.dtypes
        if dtype != torch.bfloat16  # as float16
    ]
    answers = dict(zip(map(str, cases), compiled_suite(cases, gpu), strict=True))
    assert {case: why for case, why in answers.items() if isinstance(why, str)} == {}
    spilled = {case: [part.spilled_bytes for part in parts] for case, parts in answers.items()}
    assert {case: parts for case, parts in spilled.items() if any(parts)} == {}
