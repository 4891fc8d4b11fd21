"""What the process of a kernel is asked to do, and what it tells of it."""

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
    "Call",
    "Layout",
    "Mode",
    "Order",
    "Outcome",
    "Process",
    "as_tuple",
]

NO_ARRAY = "device type tensor to numpy"  # ends what PyTorch says to who asks for one of a card
NAN, SMALL = 0xFF, 0x3C  # bytes of which floats are not-a-number, or finite and not zero
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
FENCED: tuple[Layout, ...] = ("before", "after", "readonly")  # can end the process


@dataclass(frozen=True)
class Call:
    """One call of a kernel. It does not say what for, since the kernel's process sees it.

    Attributes:
        inputs: By name.
        slot: Calls of one slot get the very same tensors, filled anew.
        layout: How tensors lie in memory: contiguous; off the alignment by an element; every
            second element; with the first two axes swapped, all in reverse, or the second one last;
            with memory that must not be touched right before or after them; or in memory that
            cannot be written.
        around: Byte of which the memory around all tensors is full.
        fresh: Byte of which memory is full that was asked for and not written yet.
        backwards: Whether programs of a grid are interpreted last to first.
        order: In which they are interpreted otherwise; first to last if empty.
        order_seed: Of an order that is random.
        times: How often the kernel is called, to give the outputs of all times, one above the
            other; once if 0, and then they are as they are.
        disguised: Whether tensors tell the kernel's file that they are on a graphics card.
        mode: In which PyTorch is, as it is where networks are used; there, all tensors but the
            first are parameters.
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
        """As it is sent."""
        told, tensors = inputs_to(self.inputs)
        options = {k: v for k, v in vars(self).items() if k != "inputs"}
        return message({"inputs": told, **options}, tensors)

    @classmethod
    def received(cls, header: Mapping[str, Any], tensors: Sequence[Tensor]) -> Call:
        """The inverse of `message`."""
        options = {name: value for name, value in header.items() if name != "inputs"}
        return cls(inputs_from(header["inputs"], tensors), **options)


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        outputs: Contiguous, on the CPU; empty where there was an error.
        error: What was raised, or how the process ended; None if all was well.
        died: Whether the process ended, or was ended, in this call.
        hung: Whether it was ended since there was no answer.
        facts: What was noticed, as texts: inputs that were ``written``, surroundings of tensors
            that were written (``outside``), memory that outputs share (``shared``), accesses of
            interpreted kernels out of bounds (``stray``) and in conflict (``conflicts``), what else
            was ``changed`` or ``asked``, outputs that are no tensors (``kinds``).
        watched: What could be noticed at all: ``interpreter`` where accesses were seen.
        seconds: How long it took, as who asked for it saw it.
    """

    outputs: tuple[Tensor, ...] = ()
    error: str | None = None
    died: bool = False
    hung: bool = False
    facts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    watched: Sequence[str] = ()
    seconds: float = 0.0

    def message(self) -> bytes:
        """As it is sent."""
        told = {"error": self.error, "facts": self.facts, "watched": self.watched}
        return message(told, self.outputs)

    @classmethod
    def received(cls, header: Mapping[str, Any], tensors: Sequence[Tensor]) -> Outcome:
        """The inverse of `message`, whoever sent it."""
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
    """One output, or several, as several."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
