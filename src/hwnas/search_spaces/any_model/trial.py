"""Tests of the groups and blocks that were found in a network, before they are used."""

from __future__ import annotations

import copy
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.blocks import ResidualRun
from hwnas.search_spaces.any_model.cutting import cut, plan, reorder
from hwnas.search_spaces.any_model.groups import ChannelGroup

__all__ = [
    "alike",
    "check_traceable",
    "checked_output",
    "cuttable",
    "is_output",
    "narrowed",
    "permutable",
    "scrambled",
    "skippable",
]

_TOLERANCE = 1e-4  # relative to the largest output; another order of summation causes 1e-6

_OTHER_OUTPUT = "its output is"


def checked_output(network: nn.Module, example: Tensor) -> Tensor:
    """Return the output of the network for the example.

    Raises:
        ConfigError: The network does not run, or returns something other than one tensor.
    """
    try:
        with torch.no_grad():
            output = network(example)
    except Exception as error:  # user code may raise anything; say where
        raise ConfigError(
            f"{type(network).__name__} does not run on an input of "
            f"{tuple(example.shape)}: {_reason(error)}{_place(error, network)}"
        ) from error
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"{type(network).__name__} returns a {type(output).__name__}; expected one tensor. "
            "Wrap it in a module that returns only the tensor to use"
        )
    return output


def check_traceable(network: nn.Module, example: Tensor) -> None:
    """Raise if the network's computation depends on the values of tensors.

    Raises:
        ConfigError: The computation depends on the values of tensors.
    """
    blank = copy.deepcopy(network).to("meta")
    try:
        with torch.no_grad():
            blank(example.to("meta"))
    except Exception as error:
        raise ConfigError(
            f"{type(network).__name__} cannot be traced, since its forward reads values of tensors "
            f"or creates tensors on a fixed device: {_reason(error)}{_place(error, blank)}. Use "
            "torch.where in place of `if`, shapes in place of values, and the device of the input"
        ) from error


def permutable(
    network: nn.Module, groups: Sequence[ChannelGroup], example: Tensor
) -> tuple[list[ChannelGroup], dict[str, str]]:
    """Return the groups whose channels can be permuted without any change of the output.

    The test uses random weights, because those of a fresh network have too many ones and zeros to
    show a change.

    Returns:
        These groups, and the reason for each other group, by name.
    """
    random = scrambled(network, example)
    expected = checked_output(random, example)
    if _same_when_reversed(random, groups, example, expected):
        return list(groups), {}
    good = [g for g in groups if _same_when_reversed(random, [g], example, expected)]
    if not _same_when_reversed(random, good, example, expected):
        good = []
    why = "its channels are coupled in a way that the graph of the network does not show"
    return good, {group.name: why for group in groups if group not in good}


def is_output(network: nn.Module, group: ChannelGroup, example: Tensor, output: Tensor) -> bool:
    """Return whether the channels of a group are those of the network's output."""
    if group.channels not in output.shape:
        return False
    return _fails(network, {group: group.unit}, (), example, output).startswith(_OTHER_OUTPUT)


def cuttable(
    network: nn.Module, widths: Mapping[ChannelGroup, int], example: Tensor, output: Tensor
) -> tuple[list[ChannelGroup], dict[str, str]]:
    """Return the groups that can be narrowed, each alone and all together.

    Args:
        network: Network in evaluation mode.
        widths: Smallest width of each group.
        example: Input of the network.
        output: Output of the whole network for the example.

    Returns:
        These groups, and the reason for each other group, by name.
    """
    if not any(_fails(network, part, (), example, output) for part in _parted(widths)):
        return list(widths), {}
    good: list[ChannelGroup] = []
    reasons: dict[str, str] = {}
    for group, width in widths.items():
        reason = _fails(network, {group: width}, (), example, output)
        if reason:
            reasons[group.name] = f"with {width} channels the network does not run: {reason}"
        else:
            good.append(group)
    if not _fails(network, {group: widths[group] for group in good}, (), example, output):
        return good, reasons
    together: list[ChannelGroup] = []
    for group in good:
        narrow = {g: widths[g] for g in [*together, group]}
        reason = _fails(network, narrow, (), example, output)
        if reason:
            reasons[group.name] = f"it cannot be narrowed together with others: {reason}"
        else:
            together.append(group)
    return together, reasons


def _parted(widths: Mapping[ChannelGroup, int]) -> Iterator[dict[ChannelGroup, int]]:
    """Yield all groups, and subsets of them such that one subset separates any two groups."""
    yield dict(widths)
    for bit in range(max(len(widths) - 1, 0).bit_length()):
        for side in (0, 1):
            yield {g: width for i, (g, width) in enumerate(widths.items()) if i >> bit & 1 == side}


def skippable(
    network: nn.Module,
    runs: Sequence[ResidualRun],
    smallest: float,
    example: Tensor,
    output: Tensor,
) -> tuple[list[ResidualRun], dict[str, str]]:
    """Return the runs of blocks that can be shortened.

    Returns:
        The runs without the blocks that cannot be skipped, and the reasons for these, by name.
    """
    good: list[ResidualRun] = []
    reasons: dict[str, str] = {}
    for run in runs:
        if not _fails(network, {}, run.skipped(run.depths(smallest)[0]), example, output):
            good.append(run)
            continue
        failed = {block: _fails(network, {}, [block], example, output) for block in run.blocks}
        rest = ResidualRun(run.name, tuple(block for block in run.blocks if not failed[block]))
        together = _fails(network, {}, rest.skipped(rest.depths(smallest)[0]), example, output)
        if together:
            failed = {block: why or together for block, why in failed.items()}
        elif len(rest.depths(smallest)) > 1:
            good.append(rest)
        reasons |= {
            block: f"without it the network does not run: {why}"
            for block, why in failed.items()
            if why
        }
    return good, reasons


def _fails(
    network: nn.Module,
    widths: Mapping[ChannelGroup, int],
    skipped: Sequence[str],
    example: Tensor,
    output: Tensor,
) -> str:
    """Return the reason why a part of the network does not run; empty if it does."""
    found = narrowed(network, widths, skipped, example)
    if isinstance(found, str):
        return found
    return "" if found.shape == output.shape else f"{_OTHER_OUTPUT} {tuple(found.shape)}"


def narrowed(
    network: nn.Module,
    widths: Mapping[ChannelGroup, int],
    skipped: Sequence[str],
    example: Tensor,
) -> Tensor | str:
    """Return the output of a part of the network for the example, or why it does not run."""
    smaller = cut(network, plan(network, widths, skipped))
    try:
        with torch.no_grad():
            output = smaller(example)
    except Exception as error:  # the graph may have missed a dependency
        return f"{_reason(error)}{_place(error, smaller)}"
    return output if isinstance(output, Tensor) else f"{_OTHER_OUTPUT} a {type(output).__name__}"


def alike(found: Tensor, expected: Tensor) -> bool:
    """Return whether two outputs differ by no more than another order of summation causes."""
    if found.shape != expected.shape:
        return False
    largest = float(expected.abs().max())
    return bool((found - expected).abs().max() <= _TOLERANCE * max(largest, 1e-30))


def _same_when_reversed(
    network: nn.Module, groups: Sequence[ChannelGroup], example: Tensor, expected: Tensor
) -> bool:
    other = copy.deepcopy(network)
    reorder(other, {group: _reversed(group) for group in groups})
    return alike(checked_output(other, example), expected)


def _reversed(group: ChannelGroup) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(group.channels).reshape(-1, group.unit)[::-1].reshape(-1)


def scrambled(network: nn.Module, example: Tensor) -> nn.Module:
    """Return a copy with random weights that keep activations at about the size that they had.

    If the output is not finite with these weights, the copy has the original weights.
    """
    random = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in random.parameters():
            if weight.dim() > 1:
                fan = max(weight[0].numel(), 1)
                weight.copy_(torch.randn(weight.shape, generator=generator) * (2 / fan) ** 0.5)
            else:
                weight.copy_(torch.rand(weight.shape, generator=generator) + 0.5)
        for name, buffer in random.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    finite = bool(checked_output(random, example).isfinite().all())
    return random if finite else copy.deepcopy(network)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _place(error: BaseException, network: nn.Module) -> str:
    """Return the innermost module that failed, and the line in it that is not PyTorch's."""
    names = {id(module): name for name, module in network.named_modules()}
    module = line = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        owner = id(frame.f_locals.get(next(iter(frame.f_code.co_varnames), "")))
        if owner in names:
            module = names[owner] or type(network).__name__
            if f"{os.sep}torch{os.sep}" not in frame.f_code.co_filename:
                line = f", {Path(frame.f_code.co_filename).name} line {number}"
    return f" (in {module!r}{line})" if module else ""
