"""Store of measurements on devices, from which costs on them can be predicted at any time."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from hwnas.atomic import recovered_folder, replacing_folder, write_json
from hwnas.errors import ArtifactError, ConfigError
from hwnas.home import home
from hwnas.plugin import closest
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import OperatorCountTable

__all__ = [
    "METRICS",
    "SCHEMA",
    "CostMetric",
    "DeviceProfile",
    "DeviceStore",
    "check_device_name",
    "cost_metric",
    "read_description",
]

SCHEMA = 1
CostMetric = Literal["latency_ms", "energy_mj", "peak_memory_bytes"]
METRICS: tuple[CostMetric, ...] = get_args(CostMetric)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_DESCRIPTION, _ARRAYS = "profile.json", "measurements.safetensors"
_STEPS = "steps."


def cost_metric(name: str) -> CostMetric:
    """Return the metric of a name; raise ConfigError if profiles have no such metric."""
    for metric in METRICS:
        if metric == name:
            return metric
    raise ConfigError(f"unknown metric {name!r}; {closest(name, METRICS)}")


@dataclass(frozen=True, eq=False)
class DeviceProfile:
    """Networks that were measured on one device.

    Attributes:
        device: Name of a target, or of a custom device.
        metric: Metric that was measured; the unit is in its name.
        networks: Name or id of each network, n of them.
        steps: Operator counts of the networks, at batch 1.
        costs: Positive costs, of shape (n,).
        kind: Origin of the costs: measured by hwnas, or read from a table.
        space: Spaces of the networks, in words.
        hardware: Processor or accelerator, in words.
        runtime: Runtime of the networks, in words.
        clock: Clock that was read; empty if it is not known.
        versions: Versions of the packages that matter.
        time: Time of the last measurement, ISO 8601.
        reference_ms: Median time of the reference model beside the last timings, in milliseconds;
            None if it was not timed.
        contended: Number of networks whose timing was disturbed by other work on the machine.
        held_out_error: Median error of the prediction of networks from the others, as a fraction;
            None if there are too few.
    """

    device: str
    metric: CostMetric = "latency_ms"
    networks: tuple[str, ...] = ()
    steps: OperatorCountTable = field(default_factory=lambda: OperatorCountTable.of(()))
    costs: Numbers = field(default_factory=lambda: np.zeros(0))
    kind: Literal["measured", "table"] = "measured"
    space: str = ""
    hardware: str = ""
    runtime: str = ""
    clock: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    reference_ms: float | None = None
    contended: int = 0
    held_out_error: float | None = None

    def __post_init__(self) -> None:
        check_device_name(self.device)
        cost_metric(self.metric)
        if not len(self.networks) == len(self.steps) == len(self.costs):
            raise ConfigError(
                f"device {self.device}: {len(self.networks)} names, {len(self.steps)} networks and "
                f"{len(self.costs)} costs; expected one of each"
            )
        wrong = [cost for cost in self.costs if not (np.isfinite(cost) and cost > 0)]
        if wrong:
            raise ConfigError(
                f"device {self.device}: a {self.metric} is {wrong[0]:g}; expected a positive number"
            )

    def __len__(self) -> int:
        return len(self.networks)

    def with_more(
        self, networks: Sequence[str], steps: OperatorCountTable, costs: Numbers
    ) -> DeviceProfile:
        """Return the same device with further measurements."""
        return replace(
            self,
            networks=(*self.networks, *networks),
            steps=OperatorCountTable.stacked([self.steps, steps]),
            costs=np.concatenate([self.costs, costs]),
        )

    def description(self) -> dict[str, Any]:
        """Return all fields but the arrays, as a JSON object."""
        values = {k: v for k, v in vars(self).items() if k not in ("steps", "costs")}
        return {"schema": SCHEMA, **values}

    def to_json(self) -> dict[str, Any]:
        """Return all fields as a JSON object."""
        steps = {name: array.tolist() for name, array in self.steps.to_arrays().items()}
        return {**self.description(), "steps": steps, "costs": self.costs.tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeviceProfile:
        """Return the profile of a JSON object, as the inverse of `to_json`."""
        steps = {name: np.array(rows, dtype=np.int64) for name, rows in data["steps"].items()}
        values = {k: v for k, v in data.items() if k != "schema"}
        values["networks"] = tuple(data["networks"])
        values["costs"] = np.array(data["costs"], dtype=np.float64)
        return cls(**{**values, "steps": OperatorCountTable.from_arrays(steps)})


@contextlib.contextmanager
def read_description(path: Path) -> Iterator[dict[str, Any]]:
    """Read a JSON object that was written with the schema number of this version of hwnas.

    An error that the contents cause inside the context becomes an ArtifactError with the path.

    Raises:
        ArtifactError: The file is damaged, or was written by another version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        schema = found.pop("schema")
        if schema == SCHEMA:
            yield found
            return
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); calibrate the device again") from error
    raise ArtifactError(
        f"{path} has schema {schema!r}, but this version of hwnas reads {SCHEMA}; update hwnas, or "
        "calibrate the device again"
    )


def check_device_name(name: str) -> None:
    """Raise if a name cannot be the name of a folder.

    Raises:
        ConfigError: The name is empty, too long or has other characters than letters, digits, . _
            and -.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be a device's name; expected letters, digits, '.', '_' and '-', at "
            "most 80, the first one a letter or a digit"
        )


@dataclass(frozen=True)
class DeviceStore:
    """Folder of device profiles: ``DEVICE/METRIC/`` with JSON and safetensors, no pickle.

    Attributes:
        folder: Folder of the store; created with the first profile.
    """

    folder: Path

    @classmethod
    def default(cls) -> DeviceStore:
        """Return the store ``$HWNAS_HOME/devices``, or ``~/.hwnas/devices`` if that is not set."""
        return cls(home() / "devices")

    @property
    def devices(self) -> list[str]:
        """Names of all devices, sorted."""
        found = {path.parent.name for path in self.folder.glob("*/*/") if path.is_dir()}
        return sorted(name for name in found if _NAME.fullmatch(name) and self.metrics(name))

    def metrics(self, device: str) -> list[CostMetric]:
        """Return the metrics that were measured on a device."""
        return [metric for metric in METRICS if self.has(device, metric)]

    def has(self, device: str, metric: CostMetric = "latency_ms") -> bool:
        """Return whether the store has a profile of a device."""
        return (recovered_folder(self._path(device, metric)) / _DESCRIPTION).is_file()

    def load(self, device: str, metric: CostMetric = "latency_ms") -> DeviceProfile:
        """Read a profile.

        Raises:
            ConfigError: The store has no such profile.
            ArtifactError: The profile is damaged, or was written by a newer version of hwnas.
        """
        path = self._path(device, metric)
        if not self.has(device, metric):
            known = closest(device, self.devices) if self.devices else "no device is known yet"
            raise ConfigError(f"{self.folder} has no {metric} of device {device!r}; {known}")
        with read_description(path / _DESCRIPTION) as found:
            arrays = _arrays(path / _ARRAYS)
            names = [name for name in arrays if name.startswith(_STEPS)]
            steps = OperatorCountTable.from_arrays(
                {n.removeprefix(_STEPS): arrays[n] for n in names}
            )
            found["networks"] = tuple(found["networks"])
            return DeviceProfile(**found, steps=steps, costs=arrays["costs"])

    def save(self, profile: DeviceProfile) -> Path:
        """Write a profile, completely or not at all; an existing one is replaced.

        Raises:
            StorageError: The profile cannot be written.
        """
        from safetensors.numpy import save_file

        path = self._path(profile.device, profile.metric)
        steps = {f"{_STEPS}{name}": array for name, array in profile.steps.to_arrays().items()}
        with replacing_folder(path) as temporary:
            save_file({"costs": profile.costs, **steps}, temporary / _ARRAYS)
            write_json(temporary / _DESCRIPTION, profile.description())
        return path

    def remove(self, device: str, metric: CostMetric = "latency_ms") -> None:
        """Remove a profile, if there is one."""
        shutil.rmtree(self._path(device, metric), ignore_errors=True)

    def _path(self, device: str, metric: CostMetric) -> Path:
        check_device_name(device)
        return self.folder / device / metric


def _arrays(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays: dict[str, Any] = load_file(path)
        return arrays
    except SafetensorError as error:
        raise ValueError(f"{path.name}: {error}") from error
