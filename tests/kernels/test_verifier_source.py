"""The verifier's check of a kernel's source, its sandbox, and malformed files."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hwnas.errors import ConfigError, KernelError
from hwnas.kernels.verifier import ForkServer, JobLimits, verify
from hwnas.kernels.verifier.process.sandbox import supported
from hwnas.kernels.verifier.suspicious import suspicious

HERE = Path(__file__).parent
RULES = HERE / "rules.py"
LIMITS = JobLimits(seconds=5, memory_bytes=2**30)
RIGHT = "    return ((x.float() - x.float().mean(1, keepdim=True)) * weight.float()).to(x.dtype)\n"
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(torch.device("cpu")) as made:
        yield made


@pytest.mark.parametrize(
    "text",
    [
        "import inspect",
        "import sys",
        "from os import environ",
        "import os\nos.environ['A']",
        "import numpy as np\nnp.fromfile('a')",
        "import numpy.ctypeslib",
        "import torch\ntorch.load('a')",
        "import torch\ntorch.utils.cpp_extension.load('a')",
        "from torch import load",
        "import torch as t\nt.empty = None",
        "getattr(x, 'a' + 'b')",
        "list(map(getattr, x, y))",
        "'{0.gi_frame}'.format(g)",
        "g.ag_frame",
        "x.untyped_storage().device",
        "e.__traceback__",
        "f.__globals__",
        "match g:\n    case object(gi_frame=f):\n        pass",
        "async def f(): ...",
        "eval('1')",
        "__import__('os')",
        "__builtins__['open']",
        "import warnings\nwith warnings.catch_warnings(record=True) as w: ...",
        "import warnings\nwarnings.filterwarnings('error', module='who')",
        "import warnings\nf = warnings.filterwarnings",
        "from warnings import filterwarnings",
        "torch.backends.cuda.is_built()",
        "import triton\ntriton.runtime.driver.active.get_current_device()",
        "if __name__ == 'model': ...",
        "open_by = __file__",
        "import warnings as w\nv = [w]",
        "'InterpretedFunction' in str(kernel)",
        "isinstance(kernel, triton.JITFunction)",
        "import logging\nlogging.time.time()",
        "import logging\nlogging.getLogger('a').findCaller()",
        "import contextlib\ncontextlib.os.getpid()",
        "import enum\nenum.bltns.open('a')",
        "import hwnas.kernels.compile_ahead as a\na.sys.modules",
        "import hwnas.kernels.compile_ahead as a\na.os.getpid()",
        "import torch\ndef of(m): return m.multiprocessing\nof(torch)",
        "import torch\nT = [torch]",
        "import torch\nU = torch.nn\nU.modules.lazy.itertools",
        "import torch\ngetattr(torch, 'load')",
        "import typing\ntyping.get_type_hints(f)",
        "import warnings\nwarnings.catch_warnings(record=True)",
        "import warnings\ncatch = warnings.catch_warnings\ncatch(record=True)",
        "import warnings\nwarnings.filterwarnings('error', module='hwnas')",
        "from warnings import catch_warnings",
        "f = ('{0.gi' + '_frame}').format\nf(g)",
        "import torch\ntorch.get_num_threads()",
        "import torch\ntorch.autograd.set_detect_anomaly(True)",
        "f.cache_info().hits",
    ],
)
def test_suspicious_finds_code_that_no_kernel_needs(text: str) -> None:
    assert suspicious(ast.parse(text))


@pytest.mark.parametrize("path", sorted((HERE / "correct").glob("*.py")), ids=lambda p: p.stem)
def test_suspicious_finds_nothing_in_correct_kernels(path: Path) -> None:
    assert suspicious(ast.parse(path.read_text())) == []


def test_suspicious_finds_nothing_in_usual_kernel_code() -> None:
    text = """
import functools, logging, math, warnings
from dataclasses import dataclass
from typing import NamedTuple
import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice

@dataclass(frozen=True)
class Config:
    block: int = 16

log = logging.getLogger(__name__)
nn = torch.nn
name = "{} of {}".format(1, 2)

class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x

@functools.lru_cache
def blocks(n): return triton.next_power_of_2(n)

@triton.jit
def kernel(x, BLOCK: tl.constexpr):
    tl.store(x, tl.load(x) * tl.math.exp2(1.0))

def run(x):
    if not hasattr(x, "device") or x.is_cuda and torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("slow", stacklevel=2)
    assert nn.functional.relu is F.relu
    return F.relu(torch.linalg.inv(x)).to(getattr(torch, "float32"))
"""
    assert suspicious(ast.parse(text)) == []


@pytest.mark.slow
@pytest.mark.skipif(not supported(), reason="system calls of this machine are not known")
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("import torch\ntorch.load('/etc/hosts')", "opens /etc/hosts"),
        ("open('/tmp/left-behind', 'w')", "opens /tmp/left-behind"),
        ("import os\nos.path.exists('/etc/hosts')", "looks at /etc/hosts"),
        ("import os\nos.fork() or os._exit(0)", "calls clone"),
        ("import socket\nsocket.socket()", "calls socket"),
        ("import subprocess\nsubprocess.run(['true'])", "calls"),
        ("open(__file__)", "opens"),
        ("import ctypes\nctypes.CDLL(None).syscall(425, 1, 0)", "calls io_uring_setup"),
    ],
)
def test_sandbox_reports_system_calls_whose_errors_are_caught(
    text: str, seen: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    path = tmp_path / "kernel.py"
    lines = "\n".join(f"        {line}" for line in text.splitlines())
    path.write_text(
        f"def run(x, weight):\n    try:\n{lines}\n    except Exception:\n        pass\n{RIGHT}"
    )
    verdict = verify(str(path), RULES, limits=LIMITS, fork_server=fork_server)
    assert "sandbox" in verdict.failed
    [check] = [check for check in verdict.checks if check.name == "sandbox"]
    assert seen in check.detail


@pytest.mark.slow
def test_verify_checks_the_source_of_imported_local_modules(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    path, beside = tmp_path / "kernel.py", tmp_path / "beside.py"
    path.write_text(
        "from beside import centre\n\ndef run(x, weight):\n    return centre(x, weight)\n"
    )
    beside.write_text(f"def centre(x, weight):\n{RIGHT}")
    assert verify(str(path), RULES, limits=LIMITS, fork_server=fork_server).failed == ()
    beside.write_text(f"import gc\n\ndef centre(x, weight):\n{RIGHT}")
    assert verify(str(path), RULES, limits=LIMITS, fork_server=fork_server).failed == ("source",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def run(x): return x", r"line 1: `run` takes \(x\); it is called with \(x, weight\)"),
        ("def run(x, weight, more): return x", "it is called with"),
        ("run = 3", "`run` is not a function"),
        ("run = [].append(1)\n", "`run` is not a function"),
        ("(" * 5000 + ")" * 5000, "kernel.py"),
        ("def run(x, weight): return x\nraise SystemExit(3)", ""),
    ],
)
def test_verify_refuses_malformed_files(
    text: str, message: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    if not message:
        assert verify(str(path), RULES, limits=LIMITS, fork_server=fork_server).failed == ("loads",)
        return
    with pytest.raises(ConfigError, match=message):
        verify(str(path), RULES, limits=LIMITS, fork_server=fork_server)


@pytest.mark.parametrize(
    "lines",
    [
        "sizes = 3\ndtypes = ('float32',)",
        "sizes = ({},)\ndtypes = ('float32',)",
        "sizes = ({'rows': -1, 'columns': 3},)\ndtypes = ('float32',)",
        "sizes = ({'rows': 3, 'columns': 3},)\ndtypes = 7",
        "sizes = ({'rows': 3, 'columns': 3},)\ndtypes = (['float32'],)",
        "sizes = ({'rows': 3, 'columns': 3}, {'rows': 3})\ndtypes = ('float32',)",
    ],
)
def test_verify_refuses_rules_with_invalid_sizes_or_dtypes(lines: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(f"{lines}\ndef inputs(s, d, g): ...\ndef reference(x, weight): ...\n")
    with pytest.raises(ConfigError, match=r"sizes have the form|dtypes"):
        verify(str(HERE / "correct" / "plain_torch.py"), rules)


@pytest.mark.parametrize(
    ("options", "inputs", "message"),
    [
        ("{'a': ({1},)}", "{'x': torch.zeros(4), 'a': 1}", "options have the form"),
        ("{3: (1,)}", "{'x': torch.zeros(4)}", "options have the form"),
        ("{'b': (1, 2)}", "{'x': torch.zeros(4), 'a': 1}", "options has b; .*tensors: a"),
        ("{}", "{}", "`inputs` gives no tensor for {'n': 4}"),
        ("{}", "{'x': 3.0}", "`inputs` gives no tensor for {'n': 4}"),
        ("{}", "torch.zeros(4)", "there are no inputs for {'n': 4}"),
    ],
)
def test_verify_refuses_rules_with_invalid_inputs_or_options(
    options: str, inputs: str, message: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(
        f"import torch\nsizes = ({{'n': 4}},)\ndtypes = ('float32',)\noptions = {options}\n"
        f"def inputs(s, d, g): return {inputs}\ndef reference(x, a=1): return x * a\n"
        "def run(x, a=1): return x * a\n"
    )
    with pytest.raises((ConfigError, KernelError), match=message):
        verify(str(path), limits=LIMITS, fork_server=fork_server)


@pytest.mark.slow
def test_verify_raises_an_error_if_the_reference_fails(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(RULES.read_text().replace("return (x -", "raise ValueError\n    return (x -"))
    with pytest.raises(KernelError, match="the reference raises an error for float16 at rows 8"):
        verify(
            str(HERE / "correct" / "plain_torch.py"), rules, limits=LIMITS, fork_server=fork_server
        )


@pytest.mark.slow
def test_verify_command_refuses_a_file_that_exits_on_import(hwnas: Command, tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("import os\nos._exit(7)\ndef run(x, weight): ...\n")
    command = ("kernels", "verify", path, "--reference", RULES)
    hwnas(*command).refused("cannot be imported", "status 7")
