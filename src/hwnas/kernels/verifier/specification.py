"""Specifications of kernels: an operator of hwnas, or a reference in a user's file.

The code of a user's file runs in a process of its own. The expected outputs are computed in float64
after the kernel's process has ended, so the kernel cannot find them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from hwnas.errors import ConfigError, KernelError
from hwnas.kernels.operator import Inputs, Operator, Sizes, dtype_name
from hwnas.kernels.primitives.activations import ACTIVATIONS
from hwnas.kernels.suite.tolerance import in_float64
from hwnas.kernels.verifier.calls import as_tuple
from hwnas.kernels.verifier.candidate import KernelRules
from hwnas.kernels.verifier.fork_server import ForkServer, JobLimits, JobResult
from hwnas.kernels.verifier.wire import inputs_from, inputs_to, message

__all__ = [
    "ExpectedOutputs",
    "FileSpecification",
    "OperatorSpecification",
    "Specification",
    "answers_of",
]


@dataclass(frozen=True)
class ExpectedOutputs:
    """Expected outputs of a kernel.

    Attributes:
        exact: Outputs of the reference in float64, or in integers.
        plain: Outputs of the reference for inputs in their own types; empty if PyTorch cannot
            compute them.
        dtypes: Data types of the outputs.
    """

    exact: tuple[Tensor, ...]
    plain: tuple[Tensor, ...]
    dtypes: tuple[torch.dtype, ...]


class Specification(Protocol):
    """Definition of what a kernel has to compute.

    Attributes:
        sizes: Sizes at which the kernel must be right.
        dtypes: Types of the first input that the kernel must accept.
        longest: Largest size class that is tried, from 0 to 2; see `large_sizes`.
    """

    sizes: tuple[Sizes, ...]
    dtypes: tuple[torch.dtype, ...]
    longest: int

    def examples(self, asked: Sequence[tuple[Sizes, torch.dtype, int]]) -> list[Inputs | None]:
        """Return random inputs for each (sizes, type, seed); None where these are not accepted."""

    def truths(
        self, questions: Sequence[tuple[Inputs, torch.dtype]]
    ) -> list[ExpectedOutputs | None]:
        """Return the expected outputs for each (inputs, type); None where these are refused."""

    def options(self, inputs: Inputs) -> dict[str, list[Any]]:
        """Return the possible values of each input that is not a tensor, by name."""

    def guesses(self, inputs: Inputs, sizes: Sizes) -> dict[str, list[Any]]:
        """Return further values that the reference may accept, by the name of the input.

        For these a kernel has to be right, or raise an error.
        """


class OperatorSpecification:
    """Specification given by one of hwnas's own operators."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.longest = 1  # the interpreter is too slow for the next size class
        self.sizes = operator.checked
        self.dtypes = operator.dtypes

    def examples(self, asked: Sequence[tuple[Sizes, torch.dtype, int]]) -> list[Inputs | None]:
        """Return examples of the operator; None where it does not accept them."""
        return [self._example(*each) for each in asked]

    def truths(
        self, questions: Sequence[tuple[Inputs, torch.dtype]]
    ) -> list[ExpectedOutputs | None]:
        """Return the outputs of the operator's reference; None where it refuses the inputs."""
        return [self._truth(inputs) for inputs, _ in questions]

    def options(self, inputs: Inputs) -> dict[str, list[Any]]:
        """Return all activations, both booleans, other floats and other zero points, by name."""
        found = {name: _values_of(value) for name, value in inputs.items()}
        found |= {name: list(ACTIVATIONS) for name in inputs if name.endswith("activation")}
        found |= {n: _near(v) for n, v in inputs.items() if type(v) is int and n.endswith("zero")}
        return {name: values for name, values in found.items() if len(values) > 1}

    def guesses(self, inputs: Inputs, sizes: Sizes) -> dict[str, list[Any]]:
        """Return an empty mapping: an operator declares all that it accepts."""
        return {}

    def _example(self, sizes: Sizes, dtype: torch.dtype, seed: int) -> Inputs | None:
        generator = Generator().manual_seed(seed)
        try:
            inputs = self._operator.example(sizes, dtype, generator, torch.device("cpu"))
            return self._operator.bound(**inputs)
        except (KernelError, RuntimeError, ValueError, IndexError, ArithmeticError):
            return None  # sizes that the operator cannot have: a window larger than the image

    def _truth(self, inputs: Inputs) -> ExpectedOutputs | None:
        try:
            self._operator.bound(**inputs)
            exact = as_tuple(self._operator.reference(**in_float64(inputs)))
        except (KernelError, RuntimeError, ValueError, IndexError):
            return None
        dtypes = tuple(output.dtype for output in self._operator.outputs(inputs))
        try:
            plain = as_tuple(self._operator.reference(**inputs))
        except RuntimeError:  # PyTorch does not have every function for every type
            plain = ()
        return ExpectedOutputs(exact, plain, dtypes)


class FileSpecification:
    """Specification given by a user's file, whose code runs in processes of its own."""

    def __init__(self, rules: KernelRules, fork_server: ForkServer, limits: JobLimits) -> None:
        self._path, self._fork_server, self._limits = rules.path, fork_server, limits
        self.sizes = rules.sizes
        self.dtypes = rules.dtypes
        self._options, self._listed = rules.options, rules.listed
        self.longest = 2

    def examples(self, asked: Sequence[tuple[Sizes, torch.dtype, int]]) -> list[Inputs | None]:
        """Return the inputs that the file's ``inputs`` makes; None where it raises an error."""
        parts = [
            message({"sizes": dict(sizes), "dtype": dtype_name(dtype), "seed": seed})
            for sizes, dtype, seed in asked
        ]
        return [
            None if "error" in header else inputs_from(header["inputs"], tensors)
            for header, tensors in self._done("examples", parts)
        ]

    def truths(
        self, questions: Sequence[tuple[Inputs, torch.dtype]]
    ) -> list[ExpectedOutputs | None]:
        """Return the outputs of the file's ``reference``; None where it raises an error.

        The output types are those that it gives for inputs in their own types. If it cannot compute
        these, floating outputs have the type of the first input.
        """
        parts = []
        for inputs, _ in questions:
            header, tensors = inputs_to(inputs)
            parts.append(message({"inputs": header}, tensors))
        answers = self._done("truths", parts)
        return [
            None if "error" in header else _split(tensors, header["exact"], dtype)
            for (header, tensors), (_, dtype) in zip(answers, questions, strict=True)
        ]

    def options(self, inputs: Inputs) -> dict[str, list[Any]]:
        """Return the values that the file lists or compares with, both booleans and other floats.

        Raises:
            KernelError: The file lists values of something that is not an input, or is a tensor.
        """
        others = [name for name, value in inputs.items() if not isinstance(value, Tensor)]
        unknown = [name for name in self._listed if name not in others]
        if unknown:
            raise KernelError(
                f"{self._path}: options has {', '.join(unknown)}; expected inputs that are not "
                f"tensors: {', '.join(others) or 'none'}"
            )
        found = {name: _values_of(value) for name, value in inputs.items()}
        for name, value in inputs.items():
            listed = self._options.get(name, ())
            if not isinstance(value, Tensor):
                found[name] = list(dict.fromkeys([value, *listed])) if listed else found[name]
        return {name: values for name, values in found.items() if len(values) > 1}

    def guesses(self, inputs: Inputs, sizes: Sizes) -> dict[str, list[Any]]:
        """Return None for tensors after the first input, other integers, and all activations.

        Integers that are lengths describe the tensors, so they get no other values.
        """
        found: dict[str, list[Any]] = {}
        for place, (name, value) in enumerate(inputs.items()):
            if isinstance(value, Tensor):
                found[name] = [None] if place else []
            elif name not in self._options and isinstance(value, str):
                found[name] = list(ACTIVATIONS)
            elif name not in self._options and type(value) is int:
                lengths = {*sizes.values(), *_lengths(inputs)} - {0, 1}
                found[name] = [] if value in lengths else [value + 1, 2 * value]
        return found

    def _done(self, role: str, parts: list[bytes]) -> list[tuple[dict[str, Any], list[Tensor]]]:
        ended = self._fork_server.job({"role": role}, parts, self._path, self._limits)
        answers = answers_of(ended, str(self._path), asked_for_rules=True)
        if len(answers) < len(parts):
            raise KernelError(f"{self._path}: its `{_ASKED[role]}` ended early: {ended.how}")
        return answers


_ASKED = {"examples": "inputs", "truths": "reference"}


def answers_of(
    ended: JobResult, path: str, *, asked_for_rules: bool = False
) -> list[tuple[dict[str, Any], list[Tensor]]]:
    """Return the messages of a job that follow its report on the import of a file.

    Raises:
        ConfigError: The import raised an error, or the file has no function ``run`` to call.
    """
    answers = list(ended.answers)
    if answers and "unloadable" in answers[0][0]:
        raise ConfigError(f"{path} cannot be imported: {answers[0][0]['unloadable']}")
    if answers and not answers[0][0].get("callable") and not asked_for_rules:
        raise ConfigError(f"{path}: `run` is not a function")
    return answers[1:]


def _values_of(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [True, False]
    if isinstance(value, float):
        # A multiple of a small value may make no visible difference.
        return [value, value * 1.75, value * 0.5, value + 0.75]
    return [value]


def _lengths(inputs: Inputs) -> set[int]:
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    return {n for value in tensors for n in (*value.shape, value.numel(), *value.stride())}


def _near(value: int) -> list[int]:
    return [value, value + 5, value - 7]


def _split(tensors: list[Tensor], exact: int, dtype: torch.dtype) -> ExpectedOutputs:
    plain = tuple(tensors[exact:])
    dtypes = tuple(output.dtype for output in plain) or tuple(
        dtype if output.is_floating_point() else output.dtype for output in tensors[:exact]
    )
    return ExpectedOutputs(tuple(tensors[:exact]), plain, dtypes)
