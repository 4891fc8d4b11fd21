"""Plan of kernels: a readable file that says how each operator of a network is computed on a GPU.

The file lies beside an ONNX file that ships for `hwnas.deploy.runtimes.triton`. Kernels are
compiled where they run, so the file holds no program. It holds operator names, sizes,
configurations, and the target, GPU and versions that they were chosen for.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton

from hwnas.atomic import write_json
from hwnas.deploy.matching.choices import Decide
from hwnas.deploy.matching.graph import Graph
from hwnas.deploy.matching.network import ChosenCall, left_in_torch
from hwnas.deploy.targets.target import Target
from hwnas.errors import ArtifactError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.codegen.chain import FUSED, Chain
from hwnas.kernels.operator import Operator, Sizes, dtype_name
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.tuning.choice import KernelChoice

__all__ = ["NO_GPU", "KernelPlan", "PlannedCall", "plan_file"]

SCHEMA = 1
NO_GPU = "none"
"""Name of the GPU in plans that were made without one."""


@dataclass(frozen=True)
class PlannedCall:
    """Call of one operator in a network, with its configuration.

    Attributes:
        operator: Name of the operator.
        revision: Digest of the operator's source, which reveals a change of it.
        output: Name of the computed value in the ONNX file.
        nodes: Kinds of the nodes that the call replaces.
        dtype: Type of the first input, such as ``"float16"``.
        sizes: Sizes of the inputs.
        config: Configuration of the operator's kernels.
        kernel: False if PyTorch computes the operator, because that is faster.
        note: Source of the configuration, in words.
        alternative: Reason why another operator that can compute the same was not chosen; empty if
            there is none.
    """

    operator: str
    revision: str
    output: str
    nodes: Sequence[str]
    dtype: str
    sizes: Mapping[str, int] = field(hash=False)
    config: Mapping[str, int] = field(hash=False)
    kernel: bool
    note: str
    alternative: str = ""

    @classmethod
    def of(cls, chosen: ChosenCall, dtype: torch.dtype) -> PlannedCall:
        """Return the planned call for a chosen call of a network that computes in a given dtype."""
        call, choice = chosen.call, chosen.choice
        return cls(
            call.operator.name,
            revision(call.operator),
            call.outputs[0],
            list(call.nodes),
            dtype_name(call.type_in(dtype)),
            dict(chosen.sizes),
            dict(choice.config),
            choice.kernel,
            choice.note,
            chosen.alternative,
        )


@dataclass(frozen=True)
class KernelPlan:
    """Plan of how a network is computed on a target.

    Attributes:
        target: Name of the target.
        gpu: Name of the GPU that the plan was made on, as its driver reports it.
        versions: Versions of Triton and PyTorch.
        calls: Operator calls, in the order in which they run.
        in_torch: Nodes that belong to no call, as kind, reason and count.
    """

    target: str
    gpu: str
    versions: Mapping[str, str] = field(hash=False)
    calls: tuple[PlannedCall, ...]
    in_torch: tuple[Mapping[str, Any], ...] = field(hash=False)

    @classmethod
    def of(
        cls, graph: Graph, chosen: Sequence[ChosenCall], dtype: torch.dtype, target: Target
    ) -> KernelPlan:
        """Return the plan of the calls that were matched and chosen on this machine."""
        left = left_in_torch(graph)
        return cls(
            target.name,
            _gpu_name(),
            _versions(),
            tuple(PlannedCall.of(each, dtype) for each in chosen),
            tuple({"kind": kind, "reason": why, "count": n} for (kind, why), n in left.items()),
        )

    @classmethod
    def read(cls, path: Path) -> KernelPlan:
        """Read a plan from a file.

        Raises:
            ArtifactError: The file is damaged, or was written by another version of hwnas.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            schema = data["schema"]
            calls = tuple(PlannedCall(**each) for each in data["calls"])
            left = tuple(data["in_torch"])
            gpu = "card" if "card" in data else "gpu"  # plans of early versions say "card"
            found = cls(data["target"], data[gpu], dict(data["versions"]), calls, left)
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"{path} is not a kernel plan ({type(error).__name__}: {error}); delete it and "
                "a new one is made"
            ) from error
        if schema != SCHEMA:
            raise ArtifactError(
                f"{path}: schema {schema!r} is not {SCHEMA}; use the hwnas version that wrote it"
            )
        return found

    def write(self, path: Path) -> None:
        """Write the plan as JSON.

        Raises:
            StorageError: The file cannot be written.
        """
        write_json(path, {"schema": SCHEMA, **asdict(self)})

    def misfit(self, target: Target) -> str:
        """Return why the plan does not apply to a target on this machine; empty if it does."""
        here = {"target": target.name, "GPU": _gpu_name(), **_versions()}
        there = {"target": self.target, "GPU": self.gpu, **self.versions}
        wrong = [name for name in here if there.get(name) != here[name]]
        if wrong:
            differences = (f"{name} {there.get(name)} instead of {here[name]}" for name in wrong)
            return f"the kernel plan was made for {', '.join(differences)}"
        changed = {call.operator for call in self.calls if call.revision != _revision_now(call)}
        if changed:
            return f"changed since the kernel plan was made: {', '.join(sorted(changed))}"
        return ""

    @property
    def decide(self) -> Decide:
        """Function that looks up the recorded choice of an operator.

        For an operator that the plan does not hold, it chooses PyTorch.
        """
        known = {_key(call.operator, call.sizes, call.dtype): call for call in self.calls}

        def decide(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> KernelChoice:
            call = known.get(_key(operator.name, sizes, dtype_name(dtype)))
            if call is None:
                config = operator.default_config(sizes, dtype)
                return KernelChoice(config, False, "not in the kernel plan", planned=True)
            return KernelChoice(call.config, call.kernel, call.note, planned=True)

        return decide


def plan_file(model: Path, target: Target) -> Path:
    """Return the path of an ONNX file's plan: beside it, named after the file and the target."""
    return model.with_name(f"{model.stem}.{target.name}.json")


def revision(operator: Operator) -> str:
    """Return twelve hexadecimal digits that change with the source of an operator."""
    made = Chain if isinstance(operator, Chain) else type(operator)
    return _digest(sys.modules[made.__module__])


def _digest(module: ModuleType) -> str:
    source = inspect.getsource(module)
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _revision_now(call: PlannedCall) -> str:
    if call.operator.startswith(FUSED):
        return _digest(sys.modules[Chain.__module__])
    return revision(OPERATORS[call.operator]) if call.operator in OPERATORS else "gone"


def _key(operator: str, sizes: Sizes, dtype: str) -> tuple[str, str, tuple[tuple[str, int], ...]]:
    return operator, dtype, tuple(sorted(sizes.items()))


def _gpu_name() -> str:
    return Accelerator.here().name if torch.cuda.is_available() else NO_GPU


def _versions() -> dict[str, str]:
    return {"triton": triton.__version__, "torch": torch.__version__}
