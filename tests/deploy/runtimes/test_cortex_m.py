"""Emulated microcontrollers: their time is the number of instructions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.deploy import (
    RUNTIMES,
    Bundle,
    Export,
    Preprocessing,
    Target,
    TimingSettings,
    measure,
)
from hwnas.deploy.microcontroller import CSource, read_integer_network
from hwnas.deploy.microcontroller.emulated import emulated
from hwnas.deploy.runtimes import open_session
from hwnas.errors import DeviceError

Command = Callable[..., Any]
TARGET = Target.parse("cpu-cortexm4-int8-b1-t1")


@pytest.fixture
def quantised(int8: Path) -> Path:
    if (reason := RUNTIMES["cortexm4"].unavailable()) is not None:
        pytest.skip(reason)
    return int8


def test_time_is_that_of_the_counted_instructions(
    quantised: Path, preprocessing: Preprocessing, digits: NDArray[np.uint8]
) -> None:
    network = read_integer_network(quantised, preprocessing)
    counted = emulated(CSource.of(network, "network", ()), digits[:1], "cortex-m4")
    settings = TimingSettings(warmup=1, rounds=5, round_ms=1.0)
    found = measure({"network": quantised}, TARGET, settings)["network"]
    assert found.latency_ms == pytest.approx(counted.instructions[0] / 1e5, rel=0.02)
    assert found.headline.p80 == pytest.approx(found.headline.p20, rel=1e-6)
    assert not found.contended


def test_session_gives_the_outputs_of_the_integer_network(
    quantised: Path, preprocessing: Preprocessing, digits: NDArray[np.uint8]
) -> None:
    network = read_integer_network(quantised, preprocessing)
    images = preprocessing(digits).contiguous().numpy()
    session = open_session(quantised, TARGET)
    before = session.cpu_clock()
    np.testing.assert_array_equal(session.run(images), network.real(network.run(digits)))
    one_batch = session.cpu_clock() - before
    session.run(images[:20])
    assert session.cpu_clock() - before == pytest.approx(1.5 * one_batch)


def test_missing_emulator_is_told(monkeypatch: pytest.MonkeyPatch, exported: Export) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match="apt-get install gcc-arm-none-eabi"):
        open_session(exported.path, TARGET)


@pytest.mark.slow
def test_search_for_a_microcontroller_ends_in_code_that_fits(
    hwnas: Command, tiny_recipe: Path, tmp_path: Path
) -> None:
    if (reason := RUNTIMES["cortexm4"].unavailable()) is not None:
        pytest.skip(reason)
    recipe = tiny_recipe.read_text().replace("cpu-onnxruntime-fp32-b1-t1", TARGET.name)
    tiny_recipe.write_text(recipe)
    answer = hwnas("search", tiny_recipe, "--run", tmp_path / "run")
    assert answer.status == 0, answer.err
    out = tmp_path / "out"
    answer = hwnas("export", tmp_path / "run", "--out", out, "--format", "c", "--arena", "64KB")
    assert answer.status == 0, answer.err
    bundle = Bundle.load(out)
    assert bundle.artifacts[0].variant == "int8"
    (made,) = bundle.converted
    assert made.source == bundle.artifacts[0].file
    assert made.sizes["arena_bytes"] <= 64 * 1024
