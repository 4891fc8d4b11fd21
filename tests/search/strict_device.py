"""GPU for tests on a machine without one: it computes on the CPU, but refuses CPU tensors.

Importing this module registers the device ``strict`` with PyTorch for the whole process, as its
accelerator. An operation on a tensor of this device together with a CPU tensor of any dimension is
an error, as on a GPU. ``CALLS`` counts the operations on the device by name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from hwnas.search.engine.devices import working_device
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate
from own_parts import EvenDials

CALLS: Counter[str] = Counter()


class StrictTensor(torch.Tensor):
    """Tensor of the device, with its values in a CPU tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> StrictTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            dtype=inner.dtype,
            layout=inner.layout,
            device="strict:0",
        )
        made.inner = inner
        return made  # type: ignore[return-value]

    def __init__(self, inner: torch.Tensor) -> None: ...

    def __repr__(self, **_: Any) -> str:
        return f"StrictTensor({self.inner!r})"

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(
        cls, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _call(op, args, kwargs or {})


def _call(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU values; return tensors of the device it is for."""
    copies = op in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    mixed = [leaf for leaf in given if not isinstance(leaf, StrictTensor) and leaf.dim()]
    if mixed and not copies:
        raise RuntimeError(
            f"{op}: expected all tensors on strict:0, found one on {mixed[0].device}"
        )
    CALLS[op.overloadpacket.__name__] += 1
    to = kwargs.get("device")
    inside = {**kwargs, "device": torch.device("cpu")} if to is not None else kwargs
    found = op(*tree_map(_opened, args), **tree_map(_opened, inside))
    if op._schema.is_mutable and found is not None:
        own = {id(leaf.inner): leaf for leaf in given if isinstance(leaf, StrictTensor)}
        return tree_map(lambda leaf: own.get(id(leaf), leaf), found)
    if to is not None and torch.device(to).type == "cpu":
        return found
    if op is torch.ops.aten.copy_.default and not isinstance(args[0], StrictTensor):
        return args[0]
    return tree_map(_closed, found)


def _opened(value: Any) -> Any:
    return value.inner if isinstance(value, StrictTensor) else value


def _closed(value: Any) -> Any:
    return StrictTensor(value) if isinstance(value, torch.Tensor) else value


def _of(name: str) -> Any:
    """Return an operator as a function; PyTorch calls some without the fallback."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return lambda *args, **kwargs: _call(op, args, kwargs)


def _made(op: Any, *args: Any, **kwargs: Any) -> Any:
    return _call(op, args, kwargs)


class _Backend(_DummyBackendModule):
    """What ``torch.strict`` offers."""

    def synchronize(self, device: Any = None) -> None: ...

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("strict", backend_module=_Backend())
_library = torch.library.Library("_", "IMPL")
_library.fallback(_made, "PrivateUse1")
_aten = torch.library.Library("aten", "IMPL")
for _name in ("empty_strided", "empty.memory_format", "copy_"):
    _aten.impl(_name, _of(_name), "PrivateUse1")


@dataclass
class DeviceOf(EvenDials):
    """Evaluator that says in a standard error whether it works on this device."""

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        found = super().evaluate(candidate, fidelity)
        strict = float(working_device().type == "strict")
        return replace(found, standard_errors={"accuracy": 0.01, "strict": strict})


def device_of(shared: None) -> str:
    """Return the type of the device that a task works on."""
    return working_device().type
