"""The verifier: it refuses planted cheats and mistakes by the expected check, and nothing else."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError, KernelError
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.verifier import ForkServer, JobLimits, KernelVerdict, verify
from hwnas.kernels.verifier.calls import CallOutcome, KernelCall
from hwnas.kernels.verifier.process.memory import GuardedTensor, extent
from hwnas.kernels.verifier.wire import DTYPES, message, messages

HERE = Path(__file__).parent
RULES = HERE / "rules.py"
PLANTED = sorted((HERE / "planted").glob("*.py"))
CORRECT = sorted((HERE / "correct").glob("*.py"))
ONE_EACH = {  # one for each check, and one correct kernel; the others are marked as exhaustive
    "asks_asynchronous_generator",
    "asks_device",
    "asks_modules",
    "asks_stack",
    "constant_output",
    "counts_calls",
    "error_that_moves",
    "input_put_back",
    "last_row_unwritten",
    "memoised_by_pointer",
    "nan_hidden",
    "one_buffer_for_all",
    "options_ignored",
    "out_of_bounds_read",
    "plain_torch",
    "race",
    "reads_by_ctypes",
    "remembered_by_sums",
    "right_at_first",
    "right_when_patched",
    "segfaults",
    "silent_half",
    "strides_ignored",
    "tail_skipped",
    "wrong_beyond_64_rows",
    "wrong_for_large_weights",
    "wrong_type",
}
LIMITS = JobLimits(seconds=30, memory_bytes=2**30)
SEED = 0  # determines sizes, and so times and counts of values; users get a random seed
Command = Callable[..., Any]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer(torch.device("cpu")) as made:
        yield made


def each(paths: list[Path]) -> Any:
    def marks(name: str) -> pytest.MarkDecorator:
        return pytest.mark.slow if name in ONE_EACH else pytest.mark.exhaustive

    return pytest.mark.parametrize(
        "path", [pytest.param(path, id=path.stem, marks=marks(path.stem)) for path in paths]
    )


@pytest.fixture(scope="module")
def verdict_of(fork_server: ForkServer) -> Callable[[Path], KernelVerdict]:
    """Return a function that verifies a file once, however many tests ask."""

    @cache
    def verdict(path: Path) -> KernelVerdict:
        rules = None if "operator =" in path.read_text() else RULES
        limits = replace(LIMITS, seconds=10) if path.stem == "hangs" else LIMITS
        return verify(str(path), rules, seed=SEED, limits=limits, fork_server=fork_server)

    return verdict


@each(PLANTED)
def test_verifier_refuses_a_planted_kernel_by_the_expected_check(
    path: Path, verdict_of: Callable[[Path], KernelVerdict]
) -> None:
    refused_by = re.match(r"# refused by: (.*)\n", path.read_text())
    assert refused_by
    verdict = verdict_of(path)
    assert not verdict.ok
    assert refused_by[1] in verdict.failed


@each(CORRECT)
def test_verifier_accepts_a_correct_kernel(
    path: Path, verdict_of: Callable[[Path], KernelVerdict]
) -> None:
    verdict = verdict_of(path)
    assert [check for check in verdict.checks if check.status == "failed"] == []
    passed = {check.name for check in verdict.checks if check.status == "passed"}
    if path.stem != "in_numpy":  # it raises an error on a GPU
        assert "disguised" in passed
    assert passed >= {"runs", "values", "shapes", "bounds", "races", "low bits"}
    assert passed >= {"unpatched", "options", "large", "similar", "many", "source"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n == "int8_pointwise" else pytest.mark.exhaustive)
        for n in OPERATORS
    ],
)
def test_verifier_accepts_the_operators_of_hwnas(name: str, fork_server: ForkServer) -> None:
    verdict = verify(name, seed=SEED, limits=LIMITS, fork_server=fork_server)
    assert [check for check in verdict.checks if check.status == "failed"] == []


@pytest.mark.slow
def test_verifier_repeats_its_verdict_for_the_same_seed(
    fork_server: ForkServer, verdict_of: Callable[[Path], KernelVerdict]
) -> None:
    path = HERE / "planted" / "silent_half.py"
    again = verify(str(path), RULES, seed=SEED, limits=LIMITS, fork_server=fork_server)
    assert again == verdict_of(path)
    assert again.seed == SEED


@pytest.mark.slow
def test_verdict_names_the_line_of_a_crash(verdict_of: Callable[[Path], KernelVerdict]) -> None:
    verdict = verdict_of(HERE / "planted" / "segfaults.py")
    runs = next(check for check in verdict.checks if check.name == "runs")
    assert "SIGSEGV at line 6" in runs.detail


@pytest.mark.slow
def test_verdict_names_the_tensor_read_out_of_bounds(
    verdict_of: Callable[[Path], KernelVerdict],
) -> None:
    verdict = verdict_of(HERE / "planted" / "out_of_bounds_read.py")
    bounds = next(check for check in verdict.checks if check.name == "bounds")
    assert re.search(r"loads \d+ values, the first 0 bytes behind the end of x", bounds.detail)


# Files that hold no kernel


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def run(:", r"kernel.py, line 1: "),
        ("x = 1\0", r"kernel.py.*: .*null bytes"),
        ("x = 1", "has no function `run`"),
        ("operator = 'pointwize'\ndef run(): ...", "did you mean 'pointwise'"),
        ("operator = str()\ndef run(): ...", "line 1: operator has to be a literal"),
        ("def run(): ...", "has no reference, inputs, sizes, dtypes; it needs `operator = "),
        (
            "from elsewhere import reference, inputs\nsizes = ({'n': 1.5},)\ndtypes = ()\nrun = 1",
            "sizes have the form",
        ),
        (
            "reference = inputs = run = 1\nsizes = ({'n': 1},)\ndtypes = ('fp16',)",
            r"dtypes \['fp16'\] are not supported; expected some of float16",
        ),
    ],
)
def test_verify_refuses_a_file_without_a_valid_kernel(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        verify(str(path))


def test_verify_refuses_a_name_that_is_neither_file_nor_operator(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"neither a file nor an operator; did you mean 'pointwise'"
    ):
        verify("pointwis")
    with pytest.raises(ConfigError, match=r"cannot read .*missing.py: No such file"):
        verify(str(tmp_path / "missing.py"))


def test_verify_reports_an_import_error_with_its_line(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("import torch\ntorch.no_such_name\n\ndef run(x, weight): ...\n")
    with pytest.raises(ConfigError, match=r"line 2: AttributeError: .*no_such_name"):
        verify(str(path), RULES, limits=LIMITS, fork_server=fork_server)


def test_verify_fails_the_loads_check_if_a_file_exits_on_import(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("import os\nos._exit(7)\ndef run(x, weight): ...\n")
    verdict = verify(str(path), RULES, limits=LIMITS, fork_server=fork_server)
    assert verdict.failed == ("loads",)
    assert "status 7" in verdict.checks[0].detail


def test_verify_refuses_rules_whose_inputs_raise_an_error(
    tmp_path: Path, fork_server: ForkServer
) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(RULES.read_text().replace("torch.randn(", "torch.no_randn("))
    with pytest.raises(KernelError, match=r"there are no inputs for \{'rows': 8"):
        verify(
            str(HERE / "correct" / "plain_torch.py"), rules, limits=LIMITS, fork_server=fork_server
        )


# The command


@pytest.mark.slow
def test_verify_command_accepts_and_refuses_kernels(hwnas: Command, tmp_path: Path) -> None:
    places = {name: tmp_path / f"{name}.json" for name in ("right", "wrong")}
    right = HERE / "correct" / "plain_torch.py"
    wrong = HERE / "planted" / "square_only.py"
    options = ("--reference", RULES, "--json")
    answer = hwnas("kernels", "verify", right, *options, places["right"])
    assert answer.status == 0
    assert "accepted" in answer.out.splitlines()[-1]
    answer = hwnas("kernels", "verify", wrong, *options, places["wrong"])
    assert answer.status == 1
    assert "refused by" in answer.out.splitlines()[-1]
    found = json.loads(places["wrong"].read_text())
    assert found["ok"] is False
    assert {"name", "status", "detail", "error"} == set(found["checks"][0])
    assert json.loads(places["right"].read_text())["ok"] is True


def test_verify_command_refuses_a_missing_file(hwnas: Command, tmp_path: Path) -> None:
    hwnas("kernels", "verify", tmp_path / "kernel.py").refused("cannot read", "kernel.py")


# Its parts


@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 2**32),
    st.integers(0, 40),
)
def test_messages_arrive_unchanged_and_incomplete_ones_are_dropped(
    name: str, shape: list[int], seed: int, lost: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 2, shape, generator=generator).to(DTYPES[name])
    sent = message({"seed": seed}, [values, values])
    found = list(messages(sent + sent[: len(sent) - lost]))
    assert len(found) == (1 if lost else 2)
    for header, tensors in found:
        assert header == {"seed": seed}
        assert all(t.dtype == values.dtype and torch.equal(t, values) for t in tensors)


def test_messages_refuse_damaged_bytes() -> None:
    with pytest.raises(KernelError, match="damaged"):
        list(messages(b"\x02\0\0\0\0\0\0\0{}"))
    shape = b'{"header": {}, "tensors": [["float32", [-1]]]}'
    with pytest.raises(KernelError, match="damaged"):
        list(messages(len(shape).to_bytes(8, "little") + shape))


def test_calls_and_outcomes_survive_sending() -> None:
    x = torch.arange(3.0)
    call = KernelCall({"x": x, "n": 3, "name": None}, "slot", "apart", backwards=True)
    [sent] = messages(call.message())
    back = KernelCall.received(*sent)
    assert torch.equal(back.inputs["x"], x)
    assert replace(back, inputs={}) == replace(call, inputs={})
    [sent] = messages(CallOutcome((x,), None, facts={"written": ["x"]}).message())
    assert CallOutcome.received(*sent).facts == {"written": ["x"]}


@pytest.mark.parametrize("layout", ["contiguous", "shifted", "apart", "transposed"])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3, 5), (2, 3, 4)])
def test_guarded_tensor_detects_writes_inside_and_around_it(
    layout: Any, shape: tuple[int, ...]
) -> None:
    values = torch.randn(shape)
    guarded = GuardedTensor(values, layout, 0xFF)
    version = guarded.tensor._version
    guarded.fill(values, 0xFF)
    assert torch.equal(guarded.tensor, values)
    assert guarded.tensor._version == version
    assert not guarded.written()
    assert not guarded.written_around()
    if values.numel():
        first, behind = extent(guarded.tensor)
        assert guarded.bounds == (first, behind)
        storage = torch.empty(0).set_(guarded.tensor.untyped_storage())
        storage[(behind - storage.data_ptr()) // 4] = 1.0
        assert guarded.written_around()
        assert not guarded.written()
        guarded.tensor.add_(1)
        assert guarded.written()
