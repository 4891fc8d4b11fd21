"""C code on an emulated microcontroller, and the memory that it really writes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.deploy.io import Preprocessing
from hwnas.deploy.microcontroller import CSource, IntegerNetwork, read_integer_network
from hwnas.deploy.microcontroller.compiled import missing_c_compiler
from hwnas.deploy.microcontroller.emulated import BOARDS, emulated, missing_emulator
from hwnas.errors import ConfigError, DeviceError


@pytest.fixture(scope="module")
def integers(int8: Path, preprocessing: Preprocessing) -> IntegerNetwork:
    return read_integer_network(int8, preprocessing)


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("core", BOARDS)
def test_emulated_processor_gives_the_bits_of_the_network(
    core: str, by_rows: bool, integers: IntegerNetwork, digits: NDArray[np.uint8]
) -> None:
    if (reason := missing_emulator()) is not None:
        pytest.skip(reason)
    found = emulated(CSource.of(integers, "network", (), by_rows), digits[:5], core)
    np.testing.assert_array_equal(found.outputs, integers.run(digits[:5]))
    assert found.instructions.min() > 10_000
    assert np.ptp(found.instructions) < 0.02 * found.instructions.max()


def test_unknown_core_is_refused(integers: IntegerNetwork, digits: NDArray[np.uint8]) -> None:
    with pytest.raises(ConfigError, match="expected one of cortex-m3, cortex-m4, cortex-m7"):
        emulated(CSource.of(integers, "network", ()), digits[:1], "cortex-m99")


def test_missing_emulator_is_told_with_what_installs_it(
    integers: IntegerNetwork, digits: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeviceError, match="apt-get install gcc-arm-none-eabi"):
        emulated(CSource.of(integers, "network", ()), digits[:1])


PROBE = """
#include "network.c"
#include <stdio.h>
#include <string.h>

int main(void)
{
    static uint8_t image[NETWORK_HEIGHT * NETWORK_WIDTH * NETWORK_CHANNELS];
    size_t size = sizeof memory, used = 0;
    if (fread(image, 1, sizeof image, stdin) != sizeof image)
        return 1;
    for (int paint = 0; paint < 256; paint += 85) {
        memset(memory, paint, size);
#ifdef BY_ROWS
        for (int y = 0; y < NETWORK_HEIGHT; y++)
            network_row(image + y * NETWORK_WIDTH * NETWORK_CHANNELS);
#else
        memcpy(network_pixels(), image, sizeof image);
        network_run();
#endif
        for (size_t i = used; i < size; i++)
            if (((uint8_t *)memory)[i] != paint)
                used = i + 1;
    }
    printf("%zu %zu", used, size);
    return 0;
}
"""


@pytest.mark.parametrize("by_rows", [False, True])
def test_highest_byte_written_is_that_of_the_plan(
    by_rows: bool, integers: IntegerNetwork, digits: NDArray[np.uint8], tmp_path: Path
) -> None:
    if (reason := missing_c_compiler()) is not None:
        pytest.skip(reason)
    source = CSource.of(integers, "network", (), by_rows)
    (tmp_path / "network.c").write_text(source.code)
    (tmp_path / "network.h").write_text(source.header)
    (tmp_path / "probe.c").write_text(PROBE)
    program = tmp_path / "probe"
    defined = ["-DBY_ROWS"] * by_rows
    subprocess.run(["cc", *defined, str(tmp_path / "probe.c"), "-o", str(program)], check=True)
    image = digits[0].tobytes()
    made = subprocess.run([program], input=image, capture_output=True, check=True)
    used, size = map(int, made.stdout.split())
    assert size == source.arena.bytes
    assert size - used < 4  # the size is rounded to words
