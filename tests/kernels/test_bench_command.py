"""`hwnas kernels bench`, on a machine without a GPU."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.conftest import Answer

WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
QUICK = ("kernels", "bench", "hard_swish+pixel_mean", "--dtype", "float32")


@pytest.mark.slow
@WITHOUT
def test_bench_command_times_backends_that_run_on_the_processor(
    hwnas: Callable[..., Answer], tmp_path: Path
) -> None:
    some = ("--backend", "reference", "--backend", "triton", "--backend", "onnxruntime")
    told = hwnas(*QUICK, *some, "--json", tmp_path / "new" / "rows.json")
    assert told.status == 0, told
    rows = json.loads((tmp_path / "new" / "rows.json").read_text())
    assert [row["backend"] for row in rows] == ["reference", "triton", "onnxruntime"] * 2
    for row in rows:
        assert (row["op"], row["dtype"]) == ("hard_swish+pixel_mean", "float32")
        assert row["device"] == "cpu"
        assert row["timing"].startswith("processor, ")
        if row["backend"] == "triton":
            assert row["median_ms"] is row["ratio"] is None
            assert "there is no GPU" in row["reason"]
        else:
            assert 0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"]
            assert row["n"] >= 6
    first, _, other = rows[:3]
    assert first["ratio"] == pytest.approx(other["median_ms"] / first["median_ms"])
    assert first["shape"] == [1, 3136, 96]
    assert "1x3136x96" in told.out
    assert "triton, 2 rows: there is no GPU" in told.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("pointwis",), "unknown operator 'pointwis'; did you mean 'pointwise'?"),
        (("--backend", "tritn"), "unknown backend 'tritn'; did you mean 'triton'?"),
        (("--backend", "no.such:thing"), "module 'no.such' does not import"),
        (("--backend", "os:path"), "lacks name, unavailable or prepare"),
        (("--dtype", "fp16"), "no operator takes 'fp16'"),
        (("two_four", "--dtype", "int8"), "two_four does not take 'int8'; it takes float16"),
        (("add+layer_norm", "--dtype", "int8"), "add+layer_norm does not take 'int8'"),
        (("--batch", "0"), "--batch"),
        (("--batch", "one"), "--batch"),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_bench_command_refuses_wrong_arguments(
    hwnas: Callable[..., Answer], arguments: tuple[str, ...], part: str
) -> None:
    hwnas("kernels", "bench", *arguments).refused(part)


def test_bench_command_refuses_an_output_path_that_it_cannot_write(
    hwnas: Callable[..., Answer], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "rows.json"
    hwnas(*QUICK, "--backend", "reference", "--json", path).refused("cannot write", "rows.json")
