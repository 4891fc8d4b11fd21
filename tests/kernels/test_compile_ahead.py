"""Compilation of kernels in a child process that can crash or hang."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from hwnas.errors import DeviceError
from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.compile_ahead import Compiled, CompileRequest, compile_in_child
from hwnas.kernels.operator import Config, Sizes
from hwnas.kernels.operators.pointwise import Pointwise, pointwise

H200 = ACCELERATORS["nvidia-h200"]
HALF = torch.float16


class Fatal(Pointwise):
    """Operator whose configuration says whether compilation crashes or hangs."""

    def __init__(self) -> None:
        pass

    def launches(self, inputs: Any, outputs: Any, config: Config) -> Any:
        if config["BLOCK_M"] == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(1000)


fatal = Fatal()


def of_sizes(pixels: int, inputs: int, outputs: int, **more: int) -> Sizes:
    given = {"images": 1, "pixels": pixels, "inputs": inputs, "outputs": outputs}
    return {**given, "gate": 0, "residual": 0, **more}


def request_for(sizes: Sizes, config: Config | None = None) -> CompileRequest:
    config = config or pointwise.default_config(sizes, HALF)
    return CompileRequest("pointwise", sizes, HALF, config, H200)


LARGE = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "BLOCK_K": 64,
    "num_warps": 8,
    "num_stages": 3,
    "SPLIT_K": 1,
}
HUGE = {
    "BLOCK_M": 256,
    "BLOCK_N": 256,
    "BLOCK_K": 128,
    "num_warps": 8,
    "num_stages": 4,
    "SPLIT_K": 1,
}
REAL = (
    request_for(of_sizes(56 * 56, 24, 144)),
    request_for(of_sizes(196, 192, 768, residual=1)),
    request_for(of_sizes(49, 960, 160, gate=1)),
    request_for(of_sizes(8 * 3136, 192, 192), LARGE),
)
WRONG = (
    CompileRequest("pointwis", of_sizes(1, 1, 1), HALF, {}, H200),
    request_for(of_sizes(49, 512, 512), HUGE),
)


@pytest.fixture(scope="module")
def answers() -> list[Compiled]:
    return compile_in_child([*WRONG, *REAL])


def test_pointwise_spills_no_registers_at_the_sizes_of_real_networks(
    answers: list[Compiled],
) -> None:
    for request, parts in zip(REAL, answers[2:], strict=True):
        assert not isinstance(parts, str), parts
        [resources] = parts
        assert resources.spilled_bytes == 0, request
        assert 16 <= resources.registers <= 255
        assert resources.warps == request.config["num_warps"]
    # Both blocks of at least one stage of the last lie in shared memory.
    assert resources.shared_bytes >= (128 + 128) * 64 * HALF.itemsize


def test_compile_in_child_reports_failed_requests_beside_the_others(
    answers: list[Compiled],
) -> None:
    not_there, too_big = answers[:2]
    assert "unknown operator 'pointwis'; did you mean 'pointwise'?" in str(not_there)
    assert "bytes of shared memory, and a program on NVIDIA H200 can have 232448" in str(too_big)


@pytest.mark.slow
def test_compile_in_child_goes_on_after_a_crash_and_a_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parent)])
    name, sizes = "test_compile_ahead:fatal", of_sizes(1, 1, 1)
    died, unknown, hung = compile_in_child(
        [
            CompileRequest(name, sizes, HALF, {"BLOCK_M": 1}, H200),
            CompileRequest("nothing", sizes, HALF, {}, H200),
            CompileRequest(name, sizes, HALF, {"BLOCK_M": 2}, H200),
        ],
        seconds=2,
    )
    assert "crashed (signal 11)" in died
    assert "unknown operator 'nothing'" in unknown
    assert "took more than 2 s" in hung


def test_compile_in_child_raises_an_error_if_the_child_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DeviceError, match="the process that compiles kernels failed"):
        compile_in_child([request_for(of_sizes(1, 1, 1))])
