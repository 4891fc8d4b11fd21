"""`hwnas kernels tune`, on a machine without a GPU."""

import json
from collections.abc import Callable

import pytest
import torch
from tests.conftest import Answer

from hwnas.kernels.resources import Resources
from hwnas.kernels.tuning import static_ranking

SIZES = "images=1,pixels=196,inputs=96,outputs=576"
WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@WITHOUT
def test_tune_command_without_a_gpu_suggests_static(hwnas: Callable[..., Answer]) -> None:
    line = hwnas("kernels", "tune", "pointwise", "--sizes", SIZES).refused("none was found")
    assert "--static ranks configurations" in line


@pytest.mark.slow
def test_tune_command_static_ranks_configs_by_busiest_bytes(hwnas: Callable[..., Answer]) -> None:
    options = ("--sizes", SIZES, "--static", "--device", "nvidia-h200", "--count", "3")
    shown = hwnas("kernels", "tune", "pointwise", *options, "--json")
    assert shown.status == 0, shown
    rows = json.loads(shown.out)
    assert len(rows) == 3
    assert {(row["device"], row["measured"]) for row in rows} == {("nvidia-h200", False)}
    read = [row["busiest_bytes"] for row in rows]
    assert read == sorted(read)
    assert all(row["registers"] > 0 and row["spilled_bytes"] == 0 for row in rows)


def test_tune_command_static_says_that_nothing_was_measured(
    hwnas: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = (Resources(40, 0, 4096, 1),)
    monkeypatch.setattr(static_ranking, "compile_in_child", lambda requests: [answer, "too big"])
    options = ("--sizes", SIZES, "--static", "--count", "2")
    told = hwnas("kernels", "tune", "pointwise", *options)
    assert told.status == 0, told
    assert "compiled for NVIDIA H200" in told.out
    assert "too big" in told.out
    assert "Nothing was measured" in told.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("pointwis", "--sizes", SIZES), ("unknown operator", "did you mean 'pointwise'?")),
        (("pointwise", "--sizes", "images=1"), ("inputs, outputs, pixels is missing", "images=1,")),
        (("pointwise", "--sizes", f"{SIZES},rows=3"), ("rows is missing, unknown",)),
        (("pointwise", "--sizes", "196x96"), ("are not of the form images=1,pixels=49",)),
        (("pointwise", "--sizes", SIZES.replace("196", "0")), ("pixels is", "out of range")),
        (("pointwise", "--sizes", SIZES.replace("196", "9" * 14)), ("pixels is", "out of range")),
        (("os:path", "--sizes", SIZES), ("operator 'os:path' is", "expected an Operator")),
        (("pointwise", "--sizes", SIZES, "--seconds", "nan"), ("--seconds",)),
        (("pointwise",), ("Missing option '--sizes'",)),
        (("pointwise", "--sizes", SIZES, "--dtype", "int4"), ("it takes float16, bfloat16",)),
        (("pointwise", "--sizes", SIZES, "--proposer", "luck"), ("unknown proposer 'luck'",)),
        (
            ("pointwise", "--sizes", SIZES, "--static", "--proposer", "rules"),
            ("--proposer has no effect here", "nothing is timed with --static"),
        ),
        (("pointwise", "--sizes", SIZES, "--static", "--warm"), ("--warm has no effect here",)),
        (("pointwise", "--sizes", SIZES, "--count", "3"), ("it applies to --static only",)),
        (
            ("pointwise", "--sizes", SIZES, "--static", "--device", "nvidia-h20"),
            ("unknown accelerator 'nvidia-h20'; did you mean 'nvidia-h200'?",),
        ),
    ],
)
def test_tune_command_refuses_wrong_arguments(
    hwnas: Callable[..., Answer], arguments: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    hwnas("kernels", "tune", *arguments).refused(*parts)
