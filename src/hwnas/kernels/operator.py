"""What an operator is: a formula in PyTorch, and Triton kernels that compute the same faster.

Each operator is one module: kernel, reference, and a final class that holds what a check, a
benchmark, the tuner and a runtime need to know of it. PyTorch knows each as ``hwnas::<name>``, with
its shapes (a fake implementation), so that ``torch.compile`` and ``torch.export`` see one node.
Feature maps are NHWC: (N, H, W, C), contiguous, so that the channels of a pixel lie side by side.
"""

from __future__ import annotations

import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from hwnas.errors import KernelError
from hwnas.kernels.accelerator import Accelerator
from hwnas.kernels.arguments import MOST, check_activations, check_counts, check_types, reach
from hwnas.kernels.choice import Choice, chosen
from hwnas.kernels.constraints import Problem
from hwnas.kernels.launch import Launch, cannot_run
from hwnas.kernels.sizes import dtype_name

__all__ = ["Config", "Inputs", "Operator", "Sizes", "Work", "dtype_name"]

Config = Mapping[str, int]  # block sizes, num_warps and num_stages of a kernel, by name
Inputs = dict[str, Any]  # what an operator is called with, by the names of its reference
Sizes = Mapping[str, int]  # what of the inputs decides which configuration is fast, by name

_MOST = MOST  # values of a tensor: kernels count them in 32 bits


@dataclass(frozen=True)
class Work:
    """What an operator does at least, whoever computes it.

    Attributes:
        moved_bytes: Read of each input and written of each output once.
        macs: Multiplications that are added to something.
    """

    moved_bytes: int
    macs: int


class Operator(ABC):
    """An operator; a subclass is final, has one instance, and `reference` gives its signature.

    Attributes:
        name: Of its module, its tests, its benchmark and its PyTorch operator.
        dtypes: Those of its first input.
        checked: Sizes at which every change of it is checked: odd, prime, small enough for the
            interpreter, which takes some 5 ms for each program of a kernel.
        measured: Sizes of layers of searched networks, for one image, at which it is timed.
        batched: The size that is as many times as large for several images.
    """

    name: ClassVar[str]
    dtypes: ClassVar[tuple[torch.dtype, ...]]
    checked: ClassVar[tuple[Sizes, ...]]
    measured: ClassVar[tuple[Sizes, ...]]
    batched: ClassVar[str] = "images"

    def __init__(self) -> None:
        self._signature = inspect.signature(self.reference)
        self._call = torch.library.custom_op(
            f"hwnas::{self.name}",
            self._implementation,
            mutates_args=(),
            schema=torch.library.infer_schema(self.reference, mutates_args=()),
        )
        self._call.register_fake(self._fake)

    @staticmethod
    @abstractmethod
    def reference(*args: Any, **kwargs: Any) -> Any:
        """The same in plain PyTorch, for any device and any floating type."""

    @abstractmethod
    def sizes(self, inputs: Inputs) -> Sizes:
        """Sizes of inputs.

        Raises:
            KernelError: Their shapes do not fit each other.
        """

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """What tensors can be that need not have the type of the first input, by name.

        Args:
            dtype: Of the first input.
        """
        return {}

    @abstractmethod
    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Random inputs of these sizes, with all that is optional where the sizes say so."""

    @abstractmethod
    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """New tensors for what is computed, not filled."""

    @abstractmethod
    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Kernels that fill the outputs, one after the other; inputs are those of `laid_out`."""

    @abstractmethod
    def problem(self, sizes: Sizes, dtype: torch.dtype, card: Accelerator) -> Problem:
        """Which configurations may be good on a card."""

    @abstractmethod
    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """A solution of `problem` for every card that is seldom far from the best."""

    @abstractmethod
    def work(self, sizes: Sizes, dtype: torch.dtype) -> Work:
        """Bytes and multiplications."""

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Bytes that its programs ask of the caches, each what it reads itself.

        That is more than those of `work` where several programs read the same; an operator that
        can tell how much more helps the tuner.
        """
        return self.work(sizes, dtype).moved_bytes

    def at_batch(self, sizes: Sizes, images: int) -> Sizes:
        """Sizes for several images, of those for one."""
        return {**sizes, self.batched: sizes[self.batched] * images}

    def choice(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> Choice:
        """The configuration that is known to be fast on a device, or the default one."""
        return chosen(self, tuple(sizes.items()), dtype, device)

    def counted(self, tensor: Tensor) -> int:
        """Return how far kernels count in a tensor: to its last value, wherever that lies."""
        return reach(tensor)

    def laid_out(self, inputs: Inputs) -> Inputs:
        """Inputs as the kernels read them: contiguous, copied where they are not."""
        return {
            name: value.contiguous() if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute it: see `reference` for what it takes.

        Where kernels cannot be run the reference computes it, and a warning says so once; where
        they are known to be slower than the reference, that computes it, too.

        Raises:
            KernelError: It does not take these shapes or this type, or a tensor is too large.
        """
        return self._call(*args, **kwargs)

    def bound(self, *args: Any, **kwargs: Any) -> Inputs:
        """What it is called with, by name, after a look whether it takes that.

        Raises:
            KernelError: It does not take these shapes or this type.
        """
        arguments = self._signature.bind(*args, **kwargs)
        arguments.apply_defaults()
        inputs = dict(arguments.arguments)
        first = next(iter(inputs.values()))
        if first.dtype not in self.dtypes:
            raise KernelError(
                f"{self.name} does not take {dtype_name(first.dtype)}; it takes "
                f"{', '.join(map(dtype_name, self.dtypes))}"
            )
        self.sizes(inputs)
        check_types(self.name, self.types(first.dtype), inputs)
        check_activations(inputs)
        return inputs

    def run(self, inputs: Inputs, config: Config | None = None) -> Any:
        """Compute it by kernels, whatever may be known of their speed.

        Args:
            inputs: As from `bound` or `example`.
            config: That of `choice` if None.

        Returns:
            A tensor, or a tuple of them, as `reference` does.

        Raises:
            KernelError: A tensor has more values than kernels can count.
        """
        inputs = self.laid_out(inputs)
        outputs = self.outputs(inputs)
        tensors = [value for value in (*inputs.values(), *outputs) if isinstance(value, Tensor)]
        count = self.counted
        check_counts(self.name, self.batched, *map(count, tensors), allowed=_MOST)
        config = config or self._choice(inputs).config
        launches = self.launches(inputs, outputs, config)
        for launch in launches:  # with workspaces, of which a configuration decides the sizes
            made = (each for each in launch.arguments.values() if isinstance(each, Tensor))
            check_counts(self.name, self.batched, *map(count, made), allowed=_MOST)
        for launch in launches:
            launch.run()
        return outputs if len(outputs) > 1 else outputs[0]

    def _implementation(self, *args: Any, **kwargs: Any) -> Any:
        inputs = self.bound(*args, **kwargs)
        reason = cannot_run(next(iter(inputs.values())).device)
        if reason is None:
            choice = self._choice(inputs)
            return self.run(inputs, choice.config) if choice.kernel else self.reference(**inputs)
        warnings.warn(f"{reason}; PyTorch computes it instead", RuntimeWarning, stacklevel=2)
        return self.reference(**inputs)

    def _choice(self, inputs: Inputs) -> Choice:
        first: Tensor = next(iter(inputs.values()))
        return self.choice(self.sizes(inputs), first.dtype, first.device)

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self.outputs(self.bound(*args, **kwargs))
        return outputs if len(outputs) > 1 else outputs[0]
