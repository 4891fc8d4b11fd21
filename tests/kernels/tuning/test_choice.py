"""Which configuration an operator uses, by the files with tuned configurations."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from hwnas.kernels.accelerator import ACCELERATORS
from hwnas.kernels.operator import Config, Inputs
from hwnas.kernels.operators.pointwise import pointwise
from hwnas.kernels.suite.timer import Times
from hwnas.kernels.tuning import choice
from hwnas.kernels.tuning.tuned import TunedEntry, TunedTable, own_path

H200 = ACCELERATORS["nvidia-h200"]
CPU = torch.device("cpu")
SIZES = {"images": 1, "pixels": 49, "inputs": 32, "outputs": 24, "gate": 0, "residual": 0}
CONFIG = {
    "BLOCK_M": 32,
    "BLOCK_N": 32,
    "BLOCK_K": 16,
    "num_warps": 2,
    "num_stages": 1,
    "SPLIT_K": 1,
}


def measured(pixels: int = 49, config: Config = CONFIG, reference_us: float = 9.0) -> TunedEntry:
    """Return an entry with made-up times."""
    return TunedEntry(
        operator="pointwise",
        dtype="float32",
        sizes=SIZES | {"pixels": pixels},
        config=config,
        times=Times(4.0, 5.0, 6.0, 30),
        timing="made up",
        rivals={"reference": Times(reference_us, reference_us, reference_us, 30)},
        versions={"triton": triton.__version__},
        date="2026-01-02T03:04:05+00:00",
    )


@pytest.fixture(autouse=True)
def _on_h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let the interpreter count as an H200 whose results are in a temporary folder."""
    monkeypatch.setenv("HWNAS_HOME", str(tmp_path))
    monkeypatch.setattr(choice, "_gpu", lambda device: H200)
    choice.forget_choices()
    yield
    choice.forget_choices()


def keep(*entries: TunedEntry) -> None:
    TunedTable(H200.name, entries).write(own_path(H200))
    choice.forget_choices()


def chosen(pixels: int = 49) -> choice.KernelChoice:
    return pointwise.choice(SIZES | {"pixels": pixels}, torch.float32, CPU)


def test_choice_takes_the_entry_measured_at_the_same_sizes() -> None:
    keep(measured(50), measured(49))
    found = chosen()
    assert (dict(found.config), found.kernel) == (CONFIG, True)
    assert found.note == "measured at these sizes, 2026-01-02"
    assert found.entry == measured(49)


def test_choice_takes_the_entry_at_the_nearest_sizes_with_a_note() -> None:
    keep(measured(100, CONFIG | {"num_warps": 4}), measured(64), measured(13))
    found = chosen()
    assert dict(found.config) == CONFIG
    assert "at the nearest sizes, images=1,pixels=64,inputs=32" in found.note


def test_choice_ignores_entries_that_are_far_away_or_do_not_fit() -> None:
    default = pointwise.default_config(SIZES, torch.float32)
    keep(measured(49 * 40))
    assert chosen().config == default
    too_many_stages = measured(50, CONFIG | {"BLOCK_K": 32, "num_stages": 5})
    keep(too_many_stages)
    assert chosen().config == default
    assert chosen().note == "default configuration: nothing near these sizes was measured"
    keep(too_many_stages, measured(64))
    assert dict(chosen().config) == CONFIG


def test_choice_uses_the_kernel_only_if_a_reference_was_timed() -> None:
    assert not chosen().kernel
    keep(replace(measured(), rivals={}))
    assert not chosen().kernel  # the reference was not timed
    assert dict(chosen().config) == CONFIG
    keep(measured())
    assert chosen().kernel


def test_choice_takes_entries_of_another_triton_with_a_note() -> None:
    keep(replace(measured(), versions={"triton": "2.9"}))
    assert dict(chosen().config) == CONFIG
    assert chosen().note.endswith(", by Triton 2.9")


@pytest.mark.parametrize("text", ["{", '{"schema": 9, "device": "NVIDIA H200", "entries": []}'])
def test_choice_skips_an_unusable_file_with_one_warning(text: str) -> None:
    own_path(H200).parent.mkdir()
    own_path(H200).write_text(text)
    with pytest.warns(RuntimeWarning, match=r"tuned kernels: .*nvidia-h200.json"):
        found = chosen()
    assert found.config == pointwise.default_config(SIZES, torch.float32)
    assert chosen(50).entry is None  # and no second warning, which would be an error


def test_operator_runs_the_chosen_config_or_the_faster_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = pointwise.example(SIZES, torch.float32, torch.Generator().manual_seed(0), CPU)
    ran: list[Config] = []
    launches = pointwise.launches

    def watched(inputs: Inputs, outputs: Any, config: Config) -> Any:
        ran.append(config)
        return launches(inputs, outputs, config)

    monkeypatch.setattr(pointwise, "launches", watched)
    keep(measured())
    expected = pointwise.reference(**inputs)
    torch.testing.assert_close(pointwise(**inputs), expected)
    assert list(map(dict, ran)) == [CONFIG]
    keep(measured(reference_us=4.0))
    assert torch.equal(pointwise(**inputs), expected)
    assert len(ran) == 1
    torch.testing.assert_close(pointwise.run(inputs), expected)
    assert list(map(dict, ran)) == [CONFIG, CONFIG]


def test_choice_reads_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(measured())
    chosen()
    own_path(H200).unlink()
    assert dict(chosen().config) == CONFIG
    assert chosen(50).entry == measured()


def test_choice_takes_the_default_config_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(measured())
    monkeypatch.undo()
    found = chosen()
    assert found.config == pointwise.default_config(SIZES, torch.float32)
    assert found.note == "default configuration: nothing is measured on cpu"
