from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hwnas.errors import ArtifactError, ConfigError
from hwnas.predictors.devices.spec_sheet import EXAMPLE, read_spec, save_spec, stored_spec
from hwnas.predictors.devices.store import DeviceStore


def written(folder: Path, text: str) -> Path:
    path = folder / "board.toml"
    path.write_text(text)
    return path


def changed(line: str, other: str) -> str:
    assert line in EXAMPLE
    return EXAMPLE.replace(line, other)


def test_read_spec_reads_the_example(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, EXAMPLE))
    assert spec.name == "my-board"
    assert spec.gflops == pytest.approx(4 * 1.8 * 2 * 128 / 32)
    numbers = [4, 1.8, spec.gflops, 12.8, 1.0, spec.launch_us]
    np.testing.assert_allclose(np.exp(spec.description), numbers)


def test_read_spec_names_a_device_after_its_file(tmp_path: Path) -> None:
    assert read_spec(written(tmp_path, changed('name = "my-board"', ""))).name == "board"


@pytest.mark.parametrize(
    ("line", "other", "message"),
    [
        ("clock_ghz = 1.8", "clock_ghz = 1800", "is 1800; expected 0.05 to 10 GHz; is it 1,000 ti"),
        ("cache_mb = 1.0", "cache_mb = 1e6", "cache_mb is 1e.06; .* MB; is it 1,000 times too la"),
        ("bandwidth_gbs = 12.8", "bandwidth_gbs = nan", "bandwidth_gbs is nan; expected 0.1 to"),
        ("cores = 4", "cores = 4.5", "cores is 4.5; expected a whole number"),
        ("cores = 4", 'cores = "four"', "cores is 'four'; expected a whole number"),
        ("cores = 4", "coers = 4", "unknown field 'coers'; did you mean 'cores'"),
        ("bandwidth_gbs = 12.8", "", "bandwidth_gbs missing; `hwnas predict --example-spec`"),
        ('kind = "mobile"', 'kind = "mobil"', "kind is 'mobil'; did you mean 'mobile'"),
        ('kind = "mobile"', "kind = 1", "kind is 1; known: accelerator, cpu"),
        ('name = "my-board"', 'name = "a b"', "cannot be a device's name"),
        ("# peak_gflops = 115", "peak_gflops = 115", "give one of peak_gflops and vector_bits"),
        ("vector_bits = 128", "", "give one of peak_gflops and vector_bits"),
        ("vector_bits = 128", "peak_gflops = 1.15", "0.16 operations for each of 4 cores"),
        ("cores = 4", "cores = = 4", "is not TOML"),
    ],
)
def test_read_spec_refuses_wrong_fields_in_one_line(
    tmp_path: Path, line: str, other: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_spec(written(tmp_path, changed(line, other)))
    assert str(caught.value).startswith(str(tmp_path / "board.toml"))
    assert "\n" not in str(caught.value)


def test_read_spec_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file"):
        read_spec(tmp_path / "none.toml")


def test_stored_spec_is_what_was_saved(tmp_path: Path) -> None:
    store, spec = DeviceStore(tmp_path / "store"), read_spec(written(tmp_path, EXAMPLE))
    assert stored_spec(store, "mine") is None
    save_spec(store, "mine", spec)
    assert stored_spec(store, "mine") == spec
    (store.folder / "mine" / "spec.json").write_text('{"schema": 1, "name": "mine"}')
    with pytest.raises(ArtifactError, match=r"spec.json is damaged .*missing"):
        stored_spec(store, "mine")
