from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hwnas.errors import ArtifactError, RunError, StorageError
from hwnas.search.training import checkpoint
from hwnas.search.training.averaging import MovingAverage
from hwnas.search.training.checkpoint import (
    Position,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
)

HERE = Position(step=3, seconds=1.5, run="run-a")


def made(seed: int, steps: int, width: int = 8) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    optimizer = torch.optim.AdamW(network.parameters())
    for _ in range(steps):
        step(network, optimizer)
    return network, optimizer


def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    network(torch.linspace(0, 1, 20).view(5, 4)).square().mean().backward()
    optimizer.step()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "checkpoint.safetensors", *made(0, 3), HERE)
    return tmp_path / "checkpoint.safetensors"


def test_loaded_checkpoint_continues_like_the_saved_training(path: Path) -> None:
    network, optimizer = made(0, 3)
    other, other_optimizer = made(1, 1)
    assert load_checkpoint(path, other, other_optimizer, "run-a") == HERE
    for _ in range(2):
        step(network, optimizer)
        step(other, other_optimizer)
    for name, tensor in network.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    for one, two in zip(
        optimizer.state_dict()["state"].values(),
        other_optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        assert all(torch.equal(torch.as_tensor(one[k]), torch.as_tensor(two[k])) for k in one)


def test_load_checkpoint_keeps_the_learning_rate(path: Path) -> None:
    network, optimizer = made(0, 0)
    optimizer.param_groups[0]["lr"] = 0.125
    load_checkpoint(path, network, optimizer, "run-a")
    assert optimizer.param_groups[0]["lr"] == 0.125


def test_load_checkpoint_refuses_another_run(path: Path) -> None:
    with pytest.raises(RunError, match=r"another training; its weights fit, .* remove"):
        load_checkpoint(path, *made(0, 0), "run-b")


def test_load_checkpoint_names_the_weights_that_differ(path: Path) -> None:
    with pytest.raises(
        RunError,
        match=r"0\.weight is \(8, 4\) in the weights and \(9, 4\) in this network, .* and 5 more\.",
    ):
        load_checkpoint(path, *made(0, 0, width=9), "run-b")
    network = nn.Sequential(nn.Linear(4, 8), nn.Identity(), nn.Linear(8, 2), nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(network.parameters())
    with pytest.raises(
        RunError, match=r"the weights have no 3\.weight, 3\.bias; this network has no 1\."
    ):
        load_checkpoint(path, network, optimizer, "run-b")


def test_load_checkpoint_refuses_another_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SCHEMA", 2)
    with pytest.raises(RunError, match=r"another version of hwnas \(schema 1, this one reads 2\)"):
        load_checkpoint(path, *made(0, 0), "run-a")


@pytest.mark.parametrize("steps", [0, 5])
def test_checkpoint_restores_the_moving_average(tmp_path: Path, steps: int) -> None:
    network, optimizer = made(0, 3)
    average = MovingAverage(network, 0.9)
    for index in range(steps):
        step(network, optimizer)
        average.update(index)
    save_checkpoint(tmp_path / "a.safetensors", network, optimizer, HERE, average)
    other, other_optimizer = made(1, 1)
    again = MovingAverage(other, 0.9)
    load_checkpoint(tmp_path / "a.safetensors", other, other_optimizer, "run-a", again)
    assert all(torch.equal(average.tensors[name], again.tensors[name]) for name in again.tensors)


def test_load_checkpoint_refuses_a_missing_average(path: Path) -> None:
    network, optimizer = made(0, 0)
    with pytest.raises(ArtifactError, match="is damaged"):
        load_checkpoint(path, network, optimizer, "run-a", MovingAverage(network, 0.9))


def test_load_checkpoint_refuses_a_file_of_weights(tmp_path: Path) -> None:
    save_file(made(0, 0)[0].state_dict(), tmp_path / "weights.safetensors")
    with pytest.raises(RunError, match="another training"):
        load_checkpoint(tmp_path / "weights.safetensors", *made(0, 0), "run-a")


@pytest.mark.parametrize("kept", [0, 7, 200, -1])
def test_load_checkpoint_refuses_a_truncated_file(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ArtifactError, match=r"is damaged \(.+\); remove it to") as caught:
        load_checkpoint(path, *made(0, 0), "run-a")
    assert "\n" not in str(caught.value)


def test_load_checkpoint_refuses_tensors_of_other_shapes(path: Path) -> None:
    with pytest.raises(ArtifactError, match="is damaged") as caught:
        load_checkpoint(path, *made(0, 0, width=9), "run-a")
    assert "\n" not in str(caught.value)


def test_failed_save_keeps_the_older_checkpoint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StorageError, match=r"cannot write .*checkpoint\.safetensors: No space"):
        save_checkpoint(path, *made(1, 5), HERE)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_weights_file_round_trip(tmp_path: Path) -> None:
    weights = made(0, 2)[0].state_dict()
    weights["0.weight"] = weights["0.weight"].t()  # not contiguous
    save_weights(tmp_path / "weights.safetensors", weights)
    loaded = load_weights(tmp_path / "weights.safetensors")
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)


def test_load_weights_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"weights\.safetensors is missing"):
        load_weights(tmp_path / "weights.safetensors")
