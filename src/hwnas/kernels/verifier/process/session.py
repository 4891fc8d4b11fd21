"""Calls of one kernel in its own process, and what can be observed of them there.

The process knows neither the expected outputs nor the purpose of a call.
"""

from __future__ import annotations

import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor

from hwnas.kernels.operator import Inputs, dtype_name
from hwnas.kernels.verifier.calls import FENCED, CallOutcome, KernelCall, Mode, Process, as_tuple
from hwnas.kernels.verifier.process.disguise import disguised
from hwnas.kernels.verifier.process.interpreter import MemoryMonitor
from hwnas.kernels.verifier.process.lasting import moving
from hwnas.kernels.verifier.process.memory import (
    GuardedTensor,
    Memory,
    extent,
    fenced,
    laid,
    same_bytes,
)
from hwnas.kernels.verifier.process.snooping import FileAccessRecord, State
from hwnas.kernels.verifier.wire import DTYPES

__all__ = ["KernelSession", "error_text"]


_SECONDS = 2.5  # CPU time after which calls are not repeated any more


class KernelSession:
    """Calls of one kernel, one after the other, in this process.

    Attributes:
        run: Kernel that is called.
    """

    run: Callable[..., Any]

    def __init__(
        self, device: torch.device, path: str | None, process: Process, beside: Sequence[str] = ()
    ) -> None:
        self._device = device
        self._path = path
        self._paths = (*filter(None, [path]), *beside)
        self._process = process
        self._moving: list[str] | None = None
        self._memory = Memory()
        self._watch = MemoryMonitor(self._memory)
        self._snooping = FileAccessRecord()
        self._slots: dict[str, dict[str, GuardedTensor]] = {}
        self._plain: dict[str, dict[str, Tensor]] = {}
        self._held: list[Tensor] = []  # former outputs, so that their memory is not reused

    def hide(self) -> None:
        """Make this process look like any other that uses a kernel, and install the monitors.

        In a process that watches programs only, a kernel's file sees PyTorch as it is.
        """
        for name in [name for name in sys.modules if name.startswith("hwnas.kernels.verifier")]:
            del sys.modules[name]
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv = [""]
        if self._process == "plain":
            return
        self._watch.install()
        if self._process == "programs":
            return
        self._memory.install()
        self._snooping.install()
        self._state = State()

    def outcome(self, call: KernelCall) -> CallOutcome:
        """Make one call, and return its outcome with what was observed."""
        if self._process != "memory":
            with (
                _mode(call.mode),
                self._watch.during("backwards" if call.backwards else call.order, call.order_seed),
            ):
                return self._plain_outcome(call)
        inputs, guards = self._placed(call)
        outputs: tuple[Any, ...] = ()
        error = None
        with (
            self._memory.during(list(guards.values()), call),
            self._watch.during("backwards" if call.backwards else call.order, call.order_seed),
            disguised(call.disguised),
        ):
            try:
                outputs = as_tuple(self.run(**inputs))
                if self._device.type == "cuda":
                    torch.cuda.synchronize(self._device)
            except BaseException as raised:
                error = error_text(raised, self._path)
        facts = self._facts(inputs, outputs, guards)
        if facts["kinds"]:
            outputs = ()
        self._held += outputs
        watched = ["interpreter"] if self._watch.active else []
        return CallOutcome(outputs, error, facts=facts, watched=watched)

    def _plain_outcome(self, call: KernelCall) -> CallOutcome:
        """Make one call where nothing of PyTorch is replaced, and return its outcome."""
        inputs = call.inputs | {
            name: self._filled(call, name, value.to(self._device))
            for name, value in call.inputs.items()
            if isinstance(value, Tensor)
        }
        if call.mode:
            inputs |= _parameters(inputs)
        outputs: tuple[Any, ...] = ()
        error = None
        try:
            if call.times:
                outputs = self._repeated(inputs, call.times)
            else:
                outputs = as_tuple(self.run(**inputs))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except BaseException as raised:
            error = error_text(raised, self._path)
        tensors = [output for output in outputs if type(output) is Tensor]
        kinds = self._kinds(outputs)
        written = [
            name
            for name, value in call.inputs.items()
            if isinstance(value, Tensor) and not same_bytes(inputs[name].cpu(), value)
        ]
        facts = {"kinds": kinds, "written": written, "shared": self._shared(inputs, tensors)}
        facts |= {"moving": (self._moving or []) if call.times else []}
        if not call.times:
            self._held += [] if kinds else outputs
        if self._process == "plain":
            return CallOutcome(() if kinds else outputs, error, facts=facts)
        watched = ["interpreter"] if self._watch.active else []
        facts |= {"stray": self._watch.stray, "conflicts": self._watch.conflicts}
        facts |= {"atomics": self._watch.atomics}
        return CallOutcome(() if kinds else outputs, error, facts=facts, watched=watched)

    def _repeated(self, inputs: Inputs, times: int) -> tuple[Tensor, ...]:
        """Return the outputs of several calls, stacked along a new first axis."""
        each: list[tuple[Any, ...]] = []
        end = process_time() + _SECONDS
        while not each or (len(each) < times and process_time() < end):
            each.append(as_tuple(self.run(**inputs)))
        if self._moving is None and self._path is not None:
            names = vars(sys.modules[Path(self._path).stem])
            self._moving = moving(lambda: self.run(**inputs), names, self._paths)
        return tuple(
            torch.stack([given.clone() for given in part]) for part in zip(*each, strict=True)
        )

    def _filled(self, call: KernelCall, name: str, value: Tensor) -> Tensor:
        """Return an ordinary tensor with the values, the same one for all calls of a slot."""
        slot = self._plain.setdefault(call.slot, {})
        if name not in slot:
            slot[name] = laid(value, call.layout)
        slot[name].data.copy_(value)
        return slot[name]

    def _kinds(self, outputs: tuple[Any, ...]) -> list[str]:
        """Return the kinds of those outputs that are not tensors that can be compared."""
        kinds = [type(output).__name__ for output in outputs if type(output) is not Tensor]
        return kinds + [
            f"{dtype_name(output.dtype)} on {output.device.type}"
            for output in outputs
            if type(output) is Tensor
            and (output.dtype not in DTYPES.values() or output.device != self._device)
        ]

    def _placed(self, call: KernelCall) -> tuple[Inputs, dict[str, GuardedTensor]]:
        """Return the inputs as the kernel gets them, and their guarded tensors by name."""
        given = {k: v for k, v in call.inputs.items() if isinstance(v, Tensor)}
        if call.layout in FENCED:
            return call.inputs | {k: fenced(v, call.layout) for k, v in given.items()}, {}
        given = {name: value.to(self._device) for name, value in given.items()}
        if call.slot not in self._slots:
            self._slots[call.slot] = {
                name: GuardedTensor(value, call.layout, call.around)
                for name, value in given.items()
            }
        guards = self._slots[call.slot]
        for name, value in given.items():
            guards[name].fill(value, call.around)
        return call.inputs | {name: guards[name].tensor for name in given}, guards

    def _facts(
        self, inputs: Inputs, outputs: tuple[Any, ...], guards: Mapping[str, GuardedTensor]
    ) -> dict[str, list[str]]:
        tensors = [output for output in outputs if type(output) is Tensor]
        return {
            "kinds": self._kinds(outputs),
            "written": [name for name, guard in guards.items() if guard.written()],
            "outside": [name for name, guard in guards.items() if guard.written_around()]
            + self._memory.written_outside(),
            "shared": self._shared(inputs, tensors),
            "stray": self._watch.stray,
            "conflicts": self._watch.conflicts,
            "atomics": self._watch.atomics,
            "changed": self._state.changes(),
            "asked": self._snooping.taken(),
        }

    def _shared(self, inputs: Inputs, outputs: Sequence[Tensor]) -> list[str]:
        """Return the names of inputs and former outputs that outputs share memory with."""
        tensors = [(name, value) for name, value in inputs.items() if isinstance(value, Tensor)]
        others = [*tensors, *(("an earlier output", held) for held in self._held)]
        found: list[str] = []
        for output in outputs:
            first, behind = extent(output)
            for name, other in others:
                start, end = extent(other)
                if max(first, start) < min(behind, end) and name not in found:
                    found.append(name)
        return found


@contextmanager
def _mode(mode: Mode) -> Iterator[None]:
    """Put PyTorch into a mode of inference inside the context, if one is named."""
    if not mode:
        yield
    else:
        with torch.inference_mode() if mode == "inference" else torch.no_grad():
            yield


def _parameters(inputs: Inputs) -> Inputs:
    """Return all floating tensors after the first tensor, as parameters of a network."""
    tensors = [(k, v) for k, v in inputs.items() if isinstance(v, Tensor)]
    return {
        name: torch.nn.Parameter(value, requires_grad=False)
        for name, value in tensors[1:]
        if value.is_floating_point()
    }


def error_text(error: BaseException, path: str | None) -> str:
    """Return an error in one line of text, with the last line of the file that led to it."""
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == path]
    where = f"line {lines[-1]}: " if lines else ""
    text = " ".join(str(error).split())[:300]
    return f"{where}{type(error).__name__}: {text}"
