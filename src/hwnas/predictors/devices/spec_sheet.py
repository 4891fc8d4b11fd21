"""Spec sheet of a device: what its maker says of it, in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hwnas.atomic import write_json
from hwnas.errors import ConfigError
from hwnas.plugin import closest
from hwnas.predictors.devices.store import DeviceStore, check_device_name, read_description
from hwnas.predictors.models.gaussian_process import Numbers

__all__ = ["EXAMPLE", "DeviceKind", "SpecSheet", "read_spec", "save_spec", "stored_spec"]

DeviceKind = Literal["cpu", "mobile", "gpu", "accelerator"]
_LAUNCH_US: Mapping[DeviceKind, float] = {"cpu": 1, "mobile": 2, "gpu": 5, "accelerator": 0.1}
"""Typical microseconds to start an operator; spec sheets do not have them."""
_RANGES = {
    "cores": (1, 100_000, ""),
    "clock_ghz": (0.05, 10, "GHz"),
    "bandwidth_gbs": (0.1, 20_000, "GB/s"),
    "cache_mb": (0.01, 4_000, "MB"),
    "peak_gflops": (0.5, 5_000_000, "GFLOP/s"),
    "vector_bits": (32, 4096, "bits"),
}
_PER_CYCLE = (0.25, 4096)  # float32 operations of one core in one cycle, over all hardware
_BITS, _OPERATIONS = 32, 2  # of a float32 number; of a multiply-accumulate
_FILE = "spec.json"

EXAMPLE = """\
# Spec sheet of a device, for `hwnas predict MODEL.onnx --spec FILE`.
name = "my-board"
kind = "mobile"        # cpu (server or desktop), mobile (phone or single board), gpu, accelerator
cores = 4              # physical cores; float32 units of a GPU, multipliers of an accelerator
clock_ghz = 1.8        # highest clock that all cores keep
vector_bits = 128      # width of the vector unit of one core; or give peak_gflops instead
# peak_gflops = 115    # float32 operations, a multiply-accumulate is two
bandwidth_gbs = 12.8   # between memory and chip
cache_mb = 1.0         # last-level cache
"""
"""Example of a file for `read_spec`."""


@dataclass(frozen=True)
class SpecSheet:
    """Numbers of a spec sheet.

    Attributes:
        name: Name of the device, for tables and messages.
        kind: ``"cpu"`` (server or desktop), ``"mobile"`` (phone or single board), ``"gpu"`` or
            ``"accelerator"``.
        cores: Physical cores; of a GPU its float32 units, of an accelerator its multipliers.
        clock_ghz: Highest clock that all cores keep, in GHz.
        bandwidth_gbs: Bandwidth of the memory, in 1e9 bytes per second.
        cache_mb: Size of the last-level cache, in 1e6 bytes.
        peak_gflops: Peak rate of float32 operations, in 1e9 per second.
        vector_bits: Width of one core's vector unit, in bits. Either this or ``peak_gflops`` is
            given; the peak rate is then one vector multiply-accumulate of each core a cycle.
    """

    name: str
    kind: DeviceKind
    cores: int
    clock_ghz: float
    bandwidth_gbs: float
    cache_mb: float
    peak_gflops: float | None = None
    vector_bits: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ConfigError(f"name is {self.name!r}; expected a text")
        check_device_name(self.name)
        if self.kind not in _LAUNCH_US:
            raise ConfigError(f"kind is {self.kind!r}; {closest(str(self.kind), _LAUNCH_US)}")
        for name in _RANGES:
            _check_range(name, getattr(self, name))
        if (self.peak_gflops is None) == (self.vector_bits is None):
            raise ConfigError("give one of peak_gflops and vector_bits")
        per_cycle = self.gflops / (self.cores * self.clock_ghz)
        if not _PER_CYCLE[0] <= per_cycle <= _PER_CYCLE[1]:
            raise ConfigError(
                f"peak_gflops is {self.gflops:g}, which is {per_cycle:.2g} operations for each of "
                f"{self.cores} cores and cycle at {self.clock_ghz:g} GHz; expected {_PER_CYCLE[0]} "
                f"to {_PER_CYCLE[1]}: check the units of peak_gflops and clock_ghz"
            )

    @property
    def gflops(self) -> float:
        """Peak rate of float32 operations, in 1e9 per second."""
        if self.peak_gflops is not None:
            return self.peak_gflops
        lanes = (self.vector_bits or 0) / _BITS
        return _OPERATIONS * lanes * self.cores * self.clock_ghz

    @property
    def launch_us(self) -> float:
        """Typical time to start an operator on this kind of device, in microseconds."""
        return _LAUNCH_US[self.kind]

    @property
    def description(self) -> Numbers:
        """Logarithms of cores, clock, peak, bandwidth, cache and launch time, of shape (6,)."""
        numbers = (self.cores, self.clock_ghz, self.gflops, self.bandwidth_gbs, self.cache_mb)
        found: Numbers = np.log([*numbers, self.launch_us])
        return found

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> SpecSheet:
        """Return the spec sheet of a table of values.

        Raises:
            ConfigError: A field is unknown or missing, or a value is out of range.
        """
        known = {field.name: field.default is MISSING for field in fields(cls)}
        for name in values:
            if name not in known:
                raise ConfigError(f"unknown field {name!r}; {closest(name, known)}")
        missing = [name for name, needed in known.items() if needed and name not in values]
        if missing:
            raise ConfigError(
                f"{', '.join(missing)} missing; `hwnas predict --example-spec` prints an example"
            )
        return cls(**values)


def _check_range(name: str, value: Any) -> None:
    least, most, unit = _RANGES[name]
    if value is None and name in ("peak_gflops", "vector_bits"):
        return
    whole = name in ("cores", "vector_bits")
    accepted = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, accepted):
        kind = "a whole number" if whole else "a number"
        raise ConfigError(f"{name} is {value!r}; expected {kind} from {least:g} to {most:g} {unit}")
    if least <= value <= most:
        return
    larger = [f"{factor:,}" for factor in (1_000, 1_000_000) if least <= value / factor <= most]
    hint = f"; is it {larger[0]} times too large?" if value > most and larger else ""
    raise ConfigError(f"{name} is {value:g}; expected {least:g} to {most:,g} {unit}{hint}")


def read_spec(path: Path) -> SpecSheet:
    """Read a spec sheet; without a name in it, the file's name is that of the device.

    Raises:
        ConfigError: The file is missing or not TOML, or a field is unknown, missing or wrong.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{path} cannot be read: {reason}; give a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return SpecSheet.from_values({"name": path.stem, **values})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def save_spec(store: DeviceStore, device: str, spec: SpecSheet) -> None:
    """Store the spec sheet of a calibrated device beside its measurements.

    Raises:
        StorageError: The file cannot be written.
    """
    check_device_name(device)
    write_json(store.folder / device / _FILE, {"schema": 1, **asdict(spec)})


def stored_spec(store: DeviceStore, device: str) -> SpecSheet | None:
    """Return the spec sheet of a calibrated device, or None if it has none.

    Raises:
        ArtifactError: The file is damaged, or was written by a newer version of hwnas.
    """
    path = store.folder / device / _FILE
    if not path.exists():
        return None
    with read_description(path) as values:
        return SpecSheet.from_values(values)
