"""Plan of a fine-tuning: the scheme, the program that was compiled for it, and its memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from hwnas.atomic import write_json
from hwnas.deploy.error_line import first_line
from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.joint_graph import JointGraph, trace_network
from hwnas.deploy.finetuning.memory import OptimizerMemory, TrainingMemory
from hwnas.deploy.finetuning.program import SavedValue, TrainingProgram
from hwnas.deploy.finetuning.scheme import UpdateScheme
from hwnas.errors import ArtifactError, ConfigError, HwnasError

__all__ = ["FineTuningPlan", "training_memory"]

_SCHEMA = 1
_ELEMENT = 4  # bytes of a weight


@dataclass(frozen=True)
class FineTuningPlan:
    """Plan of a fine-tuning: trained tensors of a network, operators, and predicted memory.

    Attributes:
        network: SHA-256 checksum of the ONNX file.
        batch: Number of images of a step.
        optimizer: Optimiser that the memory is for.
        activation_bits: Bits of an activation that is kept, 32 or 4.
        scheme: Layers that are trained.
        memory: Predicted memory.
        limit_bytes: Limit that the scheme was chosen for; None if it was given.
        saved: Values that are kept from the forward to the backward pass.
        forward: Names of the operators up to the loss, in order.
        backward: Names of the operators from the loss to the gradients, in order.
        contributions: Contributions that the choice was made from, as JSON; empty without a choice.
    """

    network: str
    batch: int
    optimizer: str
    activation_bits: int
    scheme: UpdateScheme
    memory: TrainingMemory
    limit_bytes: int | None = None
    saved: tuple[SavedValue, ...] = ()
    forward: tuple[str, ...] = ()
    backward: tuple[str, ...] = ()
    contributions: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(
        cls,
        network: str,
        program: TrainingProgram,
        scheme: UpdateScheme,
        optimizer: str,
        activation_bits: int,
        limit_bytes: int | None = None,
        contributions: Mapping[str, Any] | None = None,
    ) -> FineTuningPlan:
        """Return the plan of a compiled program; the arguments are those of the plan."""
        return cls(
            network,
            program.graph.batch,
            optimizer,
            activation_bits,
            scheme,
            training_memory(program, optimizer),
            limit_bytes,
            program.saved,
            tuple(step.name for step in program.forward_steps),
            tuple(step.name for step in program.backward_steps),
            contributions or {},
        )

    def compiled(self, network: nn.Module, input_shape: Sequence[int]) -> TrainingProgram:
        """Compile the program of the plan.

        Args:
            network: The plan's network.
            input_shape: Channels, height and width.

        Raises:
            ConfigError: The network has not the layers of the plan.
            ArtifactError: The network cannot be differentiated.
        """
        graph = trace_network(network, input_shape, self.batch)
        return compile_scheme(graph, self.scheme, self.activation_bits)

    def write(self, path: Path) -> None:
        """Write the plan as JSON.

        Raises:
            StorageError: The file cannot be written.
        """
        write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "schema": _SCHEMA,
            "network": self.network,
            "batch": self.batch,
            "optimizer": self.optimizer,
            "activation_bits": self.activation_bits,
            "limit_bytes": self.limit_bytes,
            "scheme": self.scheme.to_json(),
            "memory": self.memory.to_json(),
            "saved": [asdict(value) for value in self.saved],
            "forward": list(self.forward),
            "backward": list(self.backward),
            "contributions": dict(self.contributions),
        }

    @classmethod
    def read(cls, path: Path) -> FineTuningPlan:
        """Read a plan.

        Raises:
            ArtifactError: The file is missing or is not a plan.
        """
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ArtifactError(
                f"{path} cannot be read ({first_line(error)}); give the file that `hwnas "
                "finetune-plan` wrote"
            ) from error
        except (ValueError, LookupError, TypeError, AttributeError, HwnasError) as error:
            raise ArtifactError(
                f"{path} is not a plan of a fine-tuning ({first_line(error, named=True)}); give "
                "the file that `hwnas finetune-plan` wrote"
            ) from error

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FineTuningPlan:
        """Return the plan of the JSON object that `to_json` made.

        Raises:
            ConfigError: The plan is of a newer version, or a value is not allowed.
        """
        if data["schema"] != _SCHEMA:
            raise ConfigError(f"schema {data['schema']}; this hwnas reads schema {_SCHEMA}")
        OptimizerMemory.of(data["optimizer"])
        parts = {name: size for name, size in data["memory"].items() if name != "total_bytes"}
        return cls(
            str(data["network"]),
            int(data["batch"]),
            data["optimizer"],
            int(data["activation_bits"]),
            UpdateScheme.from_json(data["scheme"]),
            TrainingMemory(**parts),
            data["limit_bytes"],
            tuple(SavedValue(**{**each, "shape": tuple(each["shape"])}) for each in data["saved"]),
            tuple(data["forward"]),
            tuple(data["backward"]),
            data["contributions"],
        )


def training_memory(program: TrainingProgram, optimizer: str) -> TrainingMemory:
    """Return the memory of a training by a program.

    Args:
        program: Program of a scheme.
        optimizer: Name of the optimiser.
    """
    graph = program.graph
    trained = [_ELEMENT * each.elements for each in program.tensors]
    return TrainingMemory.of(_weights_bytes(graph), trained, program.memory, optimizer)


def _weights_bytes(graph: JointGraph) -> int:
    return sum(graph.storage_bytes[piece] for piece in graph.fixed_storages)
