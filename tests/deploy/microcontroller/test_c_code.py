"""C code as a format of bundles, on the command line and in Python."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hwnas as api
from hwnas.deploy import Bundle
from hwnas.errors import ArtifactError, ConfigError

Command = Callable[..., Any]


@pytest.fixture
def bundle(packed: Bundle, tmp_path: Path) -> Bundle:
    return Bundle.load(Path(shutil.copytree(packed.folder, tmp_path / "bundle")))


def test_convert_writes_c_and_tells_its_memory(hwnas: Command, bundle: Bundle) -> None:
    answer = hwnas("convert", bundle.folder, "--to", "c", "--arena", "64KB")
    assert answer.status == 0, answer.err
    (made,) = Bundle.load(bundle.folder).converted
    assert made.files == ("model.c", "model.h")
    arena, constants = made.sizes["arena_bytes"], made.sizes["constant_bytes"]
    assert f"arena of {arena:,} bytes; constant of {constants:,} bytes" in answer.out
    header = (bundle.folder / "model.h").read_text()
    assert f"#define MODEL_ARENA_BYTES {arena}" in header
    assert f"#define MODEL_CONSTANT_BYTES {constants}" in header
    code = (bundle.folder / "model.c").read_text()
    assert f"static uint32_t memory[{arena // 4}]" in code
    for word in ("malloc", "float", "double"):
        assert re.search(rf"\b{word}\b", code) is None


def test_c_code_has_the_labels_as_strings(bundle: Bundle) -> None:
    converted = api.convert(bundle, "c")
    code = (converted.folder / "model.c").read_text()
    listed = re.search(r"model_labels\[\] = \{(.*?)\}", code, re.S)
    assert listed is not None
    assert re.findall(r'"([^"]*)"', listed[1]) == list(bundle.outputs.labels)


def test_network_larger_than_the_arena_is_refused_by_how_many_bytes(
    hwnas: Command, bundle: Bundle
) -> None:
    needed = api.convert(bundle, "c").converted[0].sizes["arena_bytes"]
    told = hwnas("convert", bundle.folder, "--to", "c", "--arena", str(needed - 4)).refused(
        f"take {needed:,} bytes, 4 more than the arena of {needed - 4:,}"
    )
    assert "in use in" in told
    assert api.convert(bundle, "c", arena_bytes=needed).converted[0].sizes["arena_bytes"] == needed


@pytest.mark.parametrize("size", ["", "320", "1 MB", "2kb", "64B"])
def test_sizes_are_read(size: str) -> None:
    from hwnas.cli.networks.convert import arena_bytes

    expected = {"320": 320, "1 MB": 2**20, "2kb": 2048, "64B": 64}
    if size in expected:
        assert arena_bytes(size) == expected[size]
    else:
        with pytest.raises(ConfigError, match="expected a size such as 320KB"):
            arena_bytes(size)


@pytest.mark.parametrize("size", ["-3KB", "much", "3.5KB", "0"])
def test_wrong_arenas_are_refused(hwnas: Command, bundle: Bundle, size: str) -> None:
    hwnas("convert", bundle.folder, "--to", "c", f"--arena={size}").refused("expected")


def test_arena_without_c_code_is_refused(hwnas: Command, bundle: Bundle) -> None:
    hwnas("convert", bundle.folder, "--to", "torch", "--arena", "1MB").refused("only the format c")
    with pytest.raises(ConfigError, match="only the format c"):
        api.convert(bundle, [], arena_bytes=5)


def test_code_of_a_bundle_is_not_run_when_it_is_verified(bundle: Bundle, tmp_path: Path) -> None:
    """A bundle may come from a stranger."""
    made = api.convert(bundle, "c")
    (check,) = [each for each in made.verify() if each.name == "model.c (c)"]
    assert check.ok
    assert "run only where it was converted" in check.detail


def test_code_is_not_written_for_outputs_that_the_compiler_gets_wrong(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho no such thing >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(ArtifactError, match="cannot be compiled: no such thing"):
        api.convert(bundle, "c")
    assert Bundle.load(bundle.folder).converted == []


def test_code_is_written_where_nothing_compiles_it(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    (made,) = api.convert(bundle, "c").converted
    assert made.difference is None
    assert made.not_run is not None
    assert "there is no C compiler" in made.not_run


def test_compiled_code_gives_the_scores_of_the_bundle(bundle: Bundle) -> None:
    from hwnas.deploy.microcontroller.compiled import compiled_session, missing_c_compiler

    if (reason := missing_c_compiler()) is not None:
        pytest.skip(reason)
    made = api.convert(bundle, "c")
    pixels = bundle.golden()["images"]
    found = compiled_session(made.folder / "model.c").run(pixels)
    assert (found.argmax(1) == bundle.predict(pixels).argmax(1)).mean() > 0.8
    assert np.abs(found).max() > 0


PROGRAM = """
#include "door.h"
#include "gate.h"
#include <stdio.h>
#include <string.h>

int main(void)
{
    uint8_t image[DOOR_HEIGHT * DOOR_WIDTH * DOOR_CHANNELS];
    if (fread(image, 1, sizeof image, stdin) != sizeof image)
        return 1;
    memcpy(door_pixels(), image, sizeof image);
    const int8_t *door = door_run(), *gate = 0;
    for (int y = 0; y < GATE_HEIGHT; y++)
        gate = gate_row(image + y * GATE_WIDTH * GATE_CHANNELS);
    fwrite(door, 1, DOOR_OUTPUTS, stdout);
    fwrite(gate, 1, GATE_OUTPUTS, stdout);
    fputs(door_labels[3], stdout);
    fputs(gate_labels[4], stdout);
    return 0;
}
"""


@pytest.mark.slow
def test_two_networks_link_into_one_program(hwnas: Command, packed: Bundle, tmp_path: Path) -> None:
    from hwnas.deploy.microcontroller.compiled import missing_c_compiler

    if (reason := missing_c_compiler()) is not None:
        pytest.skip(reason)
    for name, options in {"door": [], "gate": ["--by-rows"]}.items():
        copy = tmp_path / name
        shutil.copytree(packed.folder, copy)
        answer = hwnas("convert", copy, "--to", "c", "--name", name, *options)
        assert answer.status == 0, answer.err
        (made,) = Bundle.load(copy).converted
        assert made.files == (f"{name}.c", f"{name}.h")
    (tmp_path / "main.c").write_text(PROGRAM)
    sources = [tmp_path / "main.c", tmp_path / "door" / "door.c", tmp_path / "gate" / "gate.c"]
    folders = [f"-I{tmp_path / name}" for name in ("door", "gate")]
    command = ["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", *folders, *map(str, sources)]
    subprocess.run([*command, "-o", str(tmp_path / "both")], check=True)
    image = packed.golden()["images"][0].tobytes()
    made = subprocess.run([tmp_path / "both"], input=image, capture_output=True, check=True)
    door, gate, labels = made.stdout[:10], made.stdout[10:20], made.stdout[20:]
    assert door == gate
    assert len(set(door)) > 1
    assert labels == b"34"


@pytest.mark.slow
def test_code_that_takes_rows_needs_no_more_memory_and_gives_the_same_outputs(
    hwnas: Command, bundle: Bundle
) -> None:
    whole = api.convert(bundle, "c").converted[0]
    answer = hwnas("convert", bundle.folder, "--to", "c", "--by-rows", "--json")
    assert answer.status == 0, answer.err
    (rows,) = Bundle.load(bundle.folder).converted
    assert rows.sizes["arena_bytes"] <= whole.sizes["arena_bytes"]
    assert rows.difference == whole.difference
    header = (bundle.folder / "model.h").read_text()
    assert "const int8_t *model_row(const uint8_t *row);" in header
    assert "model_pixels" not in header


def test_image_that_was_not_finished_is_forgotten(bundle: Bundle, tmp_path: Path) -> None:
    import ctypes

    from hwnas.deploy.microcontroller.compiled import missing_c_compiler

    if (reason := missing_c_compiler()) is not None:
        pytest.skip(reason)
    folder = api.convert(bundle, "c", by_rows=True).folder
    library = tmp_path / "model.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", str(folder / "model.c"), "-o", str(library)], check=True
    )
    loaded = ctypes.CDLL(str(library))
    loaded.model_row.restype = ctypes.c_void_p
    loaded.model_row.argtypes = [ctypes.c_void_p]
    first, second = bundle.golden()["images"][:2]

    def outputs(image: np.ndarray) -> list[int]:
        found = [loaded.model_row(row.ctypes.data) for row in image]
        assert found[:-1] == [None] * (len(image) - 1)
        return list((ctypes.c_int8 * 10).from_address(found[-1]))

    expected = outputs(first)
    for row in second[:5]:
        assert loaded.model_row(row.ctypes.data) is None
    loaded.model_restart()
    assert outputs(first) == expected
    assert outputs(second) != expected


@pytest.mark.parametrize("name", ["3d", "Door", "two words", "", "_door"])
def test_wrong_names_of_code_are_refused(hwnas: Command, bundle: Bundle, name: str) -> None:
    hwnas("convert", bundle.folder, "--to", "c", "--name", name).refused("such as door_model")


@pytest.mark.parametrize("options", [["--name", "door"], ["--by-rows"]])
def test_options_of_c_code_are_refused_without_it(
    hwnas: Command, bundle: Bundle, options: list[str]
) -> None:
    hwnas("convert", bundle.folder, "--to", "torch", *options).refused("only the format c")


def test_batch_of_c_code_is_refused(hwnas: Command, bundle: Bundle) -> None:
    told = hwnas("convert", bundle.folder, "--to", "c", "--batch", "4").refused("the batch is 4")
    assert "convert to c with a batch of 1" in told
    assert Bundle.load(bundle.folder).converted == []
