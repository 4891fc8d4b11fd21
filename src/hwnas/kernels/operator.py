"""Base class of operators: a formula in PyTorch, and Triton kernels that compute the same faster.

Each operator is one module: kernel, reference, and a final class with what a check, a benchmark,
the tuner and a runtime need to know of it. PyTorch knows each operator as ``hwnas::<name>``, with
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
from hwnas.kernels.launch import Launch, cannot_run
from hwnas.kernels.sizes import dtype_name
from hwnas.kernels.tuning.choice import KernelChoice, chosen
from hwnas.kernels.tuning.constraints import Problem

__all__ = ["Config", "Inputs", "Operator", "OperatorWork", "Sizes", "dtype_name"]

Config = Mapping[str, int]  # block sizes, num_warps and num_stages of a kernel, by name
Inputs = dict[str, Any]  # arguments of an operator, by the parameter names of its reference
Sizes = Mapping[str, int]  # numbers of the inputs that decide which configuration is fast

_MOST = MOST  # most values of a tensor, which kernels index with 32 bits


@dataclass(frozen=True)
class OperatorWork:
    """Least work of an operator in any implementation.

    Attributes:
        moved_bytes: Bytes moved if each input is read once and each output is written once.
        macs: Number of multiply-accumulates.
    """

    moved_bytes: int
    macs: int


class Operator(ABC):
    """Operator with a reference in PyTorch and with Triton kernels.

    A subclass is final and has one instance, and its `reference` gives the signature.

    Attributes:
        name: Name of the operator's module, tests, benchmark and PyTorch operator.
        dtypes: Types of the first input.
        checked: Sizes at which every change of the operator is checked: odd, prime, and small
            enough for the interpreter, which takes some 5 ms for each program of a kernel.
        measured: Sizes of layers of searched networks, for one image, at which the operator is
            timed.
        batched: Name of the size that is proportional to the number of images.
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
        """Compute the same in plain PyTorch, for any device and any floating type."""

    @abstractmethod
    def sizes(self, inputs: Inputs) -> Sizes:
        """Return the sizes of inputs.

        Raises:
            KernelError: The shapes of the inputs do not fit each other.
        """

    def types(self, dtype: torch.dtype) -> Mapping[str, tuple[torch.dtype, ...]]:
        """Return allowed types, by name, of tensors that may differ from the first input's type.

        Args:
            dtype: Type of the first input.
        """
        return {}

    @abstractmethod
    def example(
        self, sizes: Sizes, dtype: torch.dtype, generator: Generator, device: torch.device
    ) -> Inputs:
        """Return random inputs of these sizes, with those optional ones that the sizes contain."""

    @abstractmethod
    def outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return new uninitialised tensors for the outputs."""

    @abstractmethod
    def launches(
        self, inputs: Inputs, outputs: tuple[Tensor, ...], config: Config
    ) -> Sequence[Launch]:
        """Return launches that fill the outputs, in order; inputs are those of `laid_out`."""

    @abstractmethod
    def problem(self, sizes: Sizes, dtype: torch.dtype, gpu: Accelerator) -> Problem:
        """Return the problem whose solutions are the configurations that may be fast on a GPU."""

    @abstractmethod
    def default_config(self, sizes: Sizes, dtype: torch.dtype) -> Config:
        """Return a solution of `problem` for every GPU that is seldom far from the best one."""

    @abstractmethod
    def work(self, sizes: Sizes, dtype: torch.dtype) -> OperatorWork:
        """Return the bytes moved and the multiply-accumulates."""

    def traffic(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the bytes that all programs together request from the caches.

        They exceed the bytes of `work` if several programs read the same values; an operator that
        can tell by how much helps the tuner.
        """
        return self.work(sizes, dtype).moved_bytes

    def products(self, sizes: Sizes, dtype: torch.dtype, config: Config) -> int:
        """Return the multiplications of all programs together.

        They exceed those of `work` if blocks are padded, or if zeros are multiplied.
        """
        return self.work(sizes, dtype).macs

    def at_batch(self, sizes: Sizes, images: int) -> Sizes:
        """Return the sizes for several images, given those for one."""
        return {**sizes, self.batched: sizes[self.batched] * images}

    def choice(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> KernelChoice:
        """Return the configuration that is known to be fast on a device, or the default one."""
        return chosen(self, tuple(sizes.items()), dtype, device)

    def counted(self, tensor: Tensor) -> int:
        """Return how far kernels count in a tensor: to its last value, wherever that lies."""
        return reach(tensor)

    def laid_out(self, inputs: Inputs) -> Inputs:
        """Return the inputs as the kernels read them: contiguous, copied if they are not."""
        return {
            name: value.contiguous() if isinstance(value, Tensor) else value
            for name, value in inputs.items()
        }

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the operator, which takes the arguments of `reference`.

        If kernels cannot run, the reference computes it, and a warning says so once. The reference
        also computes it where kernels were measured to be slower, or where nothing was measured on
        the GPU.

        Raises:
            KernelError: The operator does not take these shapes or this type, or a tensor is too
                large.
        """
        return self._call(*args, **kwargs)

    def bound(self, *args: Any, **kwargs: Any) -> Inputs:
        """Return the arguments of a call by name, after a check that the operator takes them.

        Raises:
            KernelError: The operator does not take these shapes or this type.
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
        """Compute the operator by kernels, even if they are known to be slower.

        Args:
            inputs: Inputs from `bound` or `example`.
            config: Configuration of the kernels; that of `choice` if None.

        Returns:
            A tensor or a tuple of tensors, as `reference` does.

        Raises:
            KernelError: A tensor has more values than kernels can index.
        """
        inputs = self.laid_out(inputs)
        outputs = self.outputs(inputs)
        tensors = [value for value in (*inputs.values(), *outputs) if isinstance(value, Tensor)]
        count = self.counted
        check_counts(self.name, self.batched, *map(count, tensors), allowed=_MOST)
        config = config or self._choice(inputs).config
        launches = self.launches(inputs, outputs, config)
        for launch in launches:  # with workspaces, whose sizes the configuration decides
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

    def _choice(self, inputs: Inputs) -> KernelChoice:
        first: Tensor = next(iter(inputs.values()))
        return self.choice(self.sizes(inputs), first.dtype, first.device)

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self.outputs(self.bound(*args, **kwargs))
        return outputs if len(outputs) > 1 else outputs[0]
