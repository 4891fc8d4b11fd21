"""Messages to and from the process of a kernel: calls, and their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from hwnas.kernels.operator import Inputs
from hwnas.kernels.verifier.wire import inputs_from, inputs_to, message

__all__ = [
    "FENCED",
    "NAN",
    "NO_ARRAY",
    "SMALL",
    "CallOutcome",
    "KernelCall",
    "Layout",
    "Mode",
    "Order",
    "Process",
    "as_tuple",
]

NO_ARRAY = "device type tensor to numpy"  # end of PyTorch's error for NumPy arrays on a GPU
NAN, SMALL = 0xFF, 0x3C  # bytes that make floats NaN, or finite and not zero
Order = Literal["", "backwards", "shuffled", "interleaved"]
Layout = Literal[
    "contiguous",
    "shifted",
    "apart",
    "transposed",
    "reversed",
    "channels last",
    "before",
    "after",
    "readonly",
]
Process = Literal["plain", "programs", "memory"]
Mode = Literal["", "no_grad", "inference"]
FENCED: tuple[Layout, ...] = ("before", "after", "readonly")  # layouts that can end the process


@dataclass(frozen=True)
class KernelCall:
    """Call of a kernel. It does not name its purpose, since the kernel's process sees it.

    Attributes:
        inputs: Inputs by name.
        slot: Name shared by calls that get the very same tensors, filled anew.
        layout: Memory layout of the tensors: contiguous; off the alignment by one element; every
            second element; the first two axes swapped, all axes reversed, or the second axis last;
            directly before or after memory that must not be accessed; or in memory that cannot be
            written.
        around: Byte that fills the memory around all tensors.
        fresh: Byte that fills memory that was requested and not written yet.
        backwards: Whether the programs of a grid are interpreted last to first.
        order: Order of the programs otherwise; first to last if empty.
        order_seed: Seed of a random order.
        times: Number of calls, whose outputs are stacked along a new first axis; if 0, there is one
            call, whose outputs are not stacked.
        disguised: Whether tensors report to the kernel's file that they are on a GPU.
        mode: Mode of PyTorch in which networks run; with one, all floating tensors after the first
            tensor are parameters.
    """

    inputs: Inputs
    slot: str
    layout: Layout = "contiguous"
    around: int = NAN
    fresh: int = NAN
    backwards: bool = False
    order: Order = ""
    order_seed: int = 0
    disguised: bool = False
    times: int = 0
    mode: Mode = ""

    def message(self) -> bytes:
        """Return the call as it is sent."""
        header, tensors = inputs_to(self.inputs)
        options = {k: v for k, v in vars(self).items() if k != "inputs"}
        return message({"inputs": header, **options}, tensors)

    @classmethod
    def received(cls, header: Mapping[str, Any], tensors: Sequence[Tensor]) -> KernelCall:
        """Return the call that was sent, as the inverse of `message`."""
        options = {name: value for name, value in header.items() if name != "inputs"}
        return cls(inputs_from(header["inputs"], tensors), **options)


@dataclass(frozen=True)
class CallOutcome:
    """Outcome of a call.

    Attributes:
        outputs: Output tensors, contiguous and on the CPU; empty if there was an error.
        error: Error that was raised, or how the process ended; None if the call succeeded.
        died: Whether the process ended, or was killed, in this call.
        hung: Whether the process was killed because it gave no valid answer in time.
        facts: Observations, as texts: inputs that were ``written``, surroundings of tensors that
            were written (``outside``), memory that outputs share (``shared``), accesses of
            interpreted kernels out of bounds (``stray``) and in conflict (``conflicts``), kernels
            with ``atomics``, other state that was ``changed`` or read (``asked``), names whose
            values change in every call (``moving``), outputs that are not tensors (``kinds``).
        watched: Names of what could be observed: ``interpreter`` if memory accesses could.
        seconds: Duration in seconds, as measured by the process that requested the call.
    """

    outputs: tuple[Tensor, ...] = ()
    error: str | None = None
    died: bool = False
    hung: bool = False
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    watched: Sequence[str] = ()
    seconds: float = 0.0

    def message(self) -> bytes:
        """Return the outcome as it is sent, without what the requesting process adds."""
        header = {"error": self.error, "facts": self.facts, "watched": self.watched}
        return message(header, self.outputs)

    @classmethod
    def received(cls, header: Mapping[str, Any], tensors: Sequence[Tensor]) -> CallOutcome:
        """Return the outcome that an untrusted process sent, as the inverse of `message`."""
        facts = header.get("facts")
        error = header.get("error")
        return cls(
            tuple(tensors),
            None if error is None else str(error),
            facts={
                str(name): [str(text) for text in texts][:20]
                for name, texts in (facts.items() if isinstance(facts, dict) else ())
                if isinstance(texts, list)
            },
            watched=[str(name) for name in header.get("watched", ())],
        )


def as_tuple(outputs: Any) -> tuple[Any, ...]:
    """Return one or several outputs as a tuple."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
