"""How each operator of a network is computed on a card, as a file that people can read.

It lies beside an ONNX file that ships for `hwnas.deploy.runtimes.triton`. Kernels are compiled
where they run, so the file holds no program: names, sizes, configurations, and what they were
chosen for.
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
from hwnas.deploy.device import Target
from hwnas.deploy.matching.choices import Decide
from hwnas.deploy.matching.graph import Graph
from hwnas.deploy.matching.network import Chosen, left_in_torch
from hwnas.errors import ArtifactError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.catalogue import OPERATORS
from hwnas.kernels.chain import FUSED, Chain
from hwnas.kernels.choice import Choice
from hwnas.kernels.operator import Operator, Sizes, dtype_name

__all__ = ["KernelPlan", "PlannedCall", "plan_file"]

SCHEMA = 1
_NO_CARD = "none"


@dataclass(frozen=True)
class PlannedCall:
    """One operator at one place of a network.

    Attributes:
        operator: Its name.
        revision: Of its source, so that a change of it is noticed.
        output: Name of what it computes, in the ONNX file.
        nodes: Kinds of the nodes that it stands for.
        dtype: Of its first input, as ``"float16"``.
        sizes: Of its inputs.
        config: Of its kernels.
        kernel: False where PyTorch computes it, since that is faster.
        note: Where this is known from.
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

    @classmethod
    def of(cls, chosen: Chosen, dtype: torch.dtype) -> PlannedCall:
        """A call of a network that computes in some type."""
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
        )


@dataclass(frozen=True)
class KernelPlan:
    """How a network is computed on a target.

    Attributes:
        target: Name of the target.
        card: That it was made on, as the driver calls it.
        versions: Of Triton and PyTorch.
        calls: Its operators, in the order in which they run.
        in_torch: Nodes that are no part of a call: kind, reason and how often.
    """

    target: str
    card: str
    versions: Mapping[str, str] = field(hash=False)
    calls: tuple[PlannedCall, ...]
    in_torch: tuple[Mapping[str, Any], ...] = field(hash=False)

    @classmethod
    def of(
        cls, graph: Graph, chosen: Sequence[Chosen], dtype: torch.dtype, target: Target
    ) -> KernelPlan:
        """What was matched and chosen on this machine."""
        left = left_in_torch(graph)
        return cls(
            target.name,
            _card(),
            _versions(),
            tuple(PlannedCall.of(each, dtype) for each in chosen),
            tuple({"kind": kind, "reason": why, "count": n} for (kind, why), n in left.items()),
        )

    @classmethod
    def read(cls, path: Path) -> KernelPlan:
        """Read what was written.

        Raises:
            ArtifactError: It is damaged, or of another version of hwnas.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            schema = data["schema"]
            calls = tuple(PlannedCall(**each) for each in data["calls"])
            left = tuple(data["in_torch"])
            found = cls(data["target"], data["card"], dict(data["versions"]), calls, left)
        except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"{path} is no plan of kernels ({type(error).__name__}: {error}); delete it and "
                "a new one is made"
            ) from error
        if schema != SCHEMA:
            raise ArtifactError(
                f"{path}: schema {schema!r} is not {SCHEMA}; it needs another hwnas"
            )
        return found

    def write(self, path: Path) -> None:
        """Write it as JSON.

        Raises:
            StorageError: The file cannot be written.
        """
        write_json(path, {"schema": SCHEMA, **asdict(self)})

    def misfit(self, target: Target) -> str:
        """Why it says nothing of a target on this machine; empty if it does."""
        here = {"target": target.name, "card": _card(), **_versions()}
        there = {"target": self.target, "card": self.card, **self.versions}
        wrong = [name for name in here if there.get(name) != here[name]]
        if wrong:
            told = (f"{name} {there.get(name)} instead of {here[name]}" for name in wrong)
            return f"the plan of kernels was made for {', '.join(told)}"
        changed = {call.operator for call in self.calls if call.revision != _revision_now(call)}
        if changed:
            return f"since the plan of kernels was made, {', '.join(sorted(changed))} have changed"
        return ""

    @property
    def decide(self) -> Decide:
        """What was chosen then; what was not is not worth it."""
        known = {_key(call.operator, call.sizes, call.dtype): call for call in self.calls}

        def decide(operator: Operator, sizes: Sizes, dtype: torch.dtype) -> Choice:
            call = known.get(_key(operator.name, sizes, dtype_name(dtype)))
            if call is None:
                config = operator.default_config(sizes, dtype)
                return Choice(config, False, "not in the plan of kernels")
            return Choice(call.config, call.kernel, call.note)

        return decide


def plan_file(model: Path, target: Target) -> Path:
    """Where the plan of an ONNX file lies: beside it, named after it and the target."""
    return model.with_name(f"{model.stem}.{target.name}.json")


def revision(operator: Operator) -> str:
    """Twelve digits that change with the source of an operator."""
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


def _card() -> str:
    return Accelerator.here().name if torch.cuda.is_available() else _NO_CARD


def _versions() -> dict[str, str]:
    return {"triton": triton.__version__, "torch": torch.__version__}
