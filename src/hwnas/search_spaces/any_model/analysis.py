"""From a model to the space of the networks within it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.axes import Axis
from hwnas.search_spaces.any_model.blocks import Run, residual_runs
from hwnas.search_spaces.any_model.cutting import reorder
from hwnas.search_spaces.any_model.groups import ChannelGroup, channel_groups
from hwnas.search_spaces.any_model.heads import Attention, attentions, head_groups, with_width
from hwnas.search_spaces.any_model.importance import importance_order
from hwnas.search_spaces.any_model.multihead import with_separate_heads
from hwnas.search_spaces.any_model.space import ElasticSpace, Fixed
from hwnas.search_spaces.any_model.trial import (
    check_traceable,
    checked_output,
    cuttable,
    is_output,
    permutable,
    skippable,
)

__all__ = ["elastic", "narrow_groups"]

_STIFF_HEADS = "its heads cannot be left out: its forward or its layers have their number built in"


def elastic(
    model: nn.Module,
    example_input: Tensor,
    *,
    widths: Sequence[float] = (0.5, 0.75, 1.0),
    step: int = 8,
    min_depth: float = 0.5,
    keep: Sequence[str] = (),
    pretrained: bool = False,
) -> ElasticSpace:
    """The space of all narrower and shallower networks within a model, with its weights.

    Channels that go together become one choice each, sorted such that narrow networks keep those
    that matter most; residual blocks that keep their shape may be skipped. The model itself is
    left as it is.

    Args:
        model: Takes images (N, C, H, W) and returns one tensor. Its weights become those of the
            supernet.
        example_input: An input for it, at least one image; nothing is learned from it, except
            which residual blocks change it least.
        widths: Parts of the channels that may stay, each in (0, 1]; rounded up to the step.
        step: Widths are multiples of this, or all channels.
        min_depth: The part of each row of residual blocks that stays at least, in [0, 1].
        keep: Names of modules whose layers and blocks stay as they are.
        pretrained: Whether the model is trained, so that a supernet may learn from it.

    Returns:
        The space; its ``fixed`` lists what is not elastic, and why.

    Raises:
        ConfigError: An option is out of range, the model cannot be traced, or nothing of it can be
            made elastic.
    """
    _check_options(model, example_input, widths, step, min_depth, keep)
    network = with_separate_heads(copy.deepcopy(model).cpu().eval())
    example = example_input.detach().cpu()
    output = checked_output(network, example)
    check_traceable(network, example)
    good, fixed = narrow_groups(
        network, example, output, lambda group: _options(group, widths, step), step, keep
    )
    depths, reasons = _depths(network, example, output, min_depth, keep)
    fixed |= reasons
    if not good and not depths:
        name, reason = next(iter(fixed.items()), ("the model", "it has no layers to cut"))
        raise ConfigError(
            f"space elastic: nothing of {type(model).__name__} can be made elastic; "
            f"{name}: {reason}"
        )
    reorder(network, {group: importance_order(network, group) for group in good})
    by_layer = {name.partition("#")[0]: reason for name, reason in fixed.items()}
    listed = tuple(Fixed(name, reason) for name, reason in by_layer.items())
    shape = (example.shape[1], example.shape[2], example.shape[3])
    return ElasticSpace(network, shape, good, depths, listed, pretrained)


def narrow_groups(
    network: nn.Module,
    example: Tensor,
    output: Tensor,
    options: Callable[[ChannelGroup], tuple[int, ...]],
    step: int,
    keep: Sequence[str] = (),
) -> tuple[dict[ChannelGroup, tuple[int, ...]], dict[str, str]]:
    """The groups of channels that can be narrow, with their widths; each was tried.

    Args:
        network: In evaluation mode.
        example: An input for it.
        output: What it makes of that.
        options: Widths of a group, increasing.
        step: What widths are multiples of, for the reasons.
        keep: Names of modules whose channels stay.

    Returns:
        The groups that have narrower widths, and by layer, why it is in no such group.
    """
    wanted, fixed = _wanted(network, example, output, options, step, keep)
    good, reasons = permutable(network, list(wanted), example)
    fixed |= reasons
    good, reasons = cuttable(network, {g: wanted[g][0] for g in good}, example, output)
    return {group: wanted[group] for group in good}, fixed | reasons


def _wanted(
    network: nn.Module,
    example: Tensor,
    output: Tensor,
    options: Callable[[ChannelGroup], tuple[int, ...]],
    step: int,
    keep: Sequence[str],
) -> tuple[dict[ChannelGroup, tuple[int, ...]], dict[str, str]]:
    """The widths of all groups that have narrower ones, and why layers are in no such group."""
    asked = [p.requires_grad for p in network.parameters()]
    network.requires_grad_(True)
    found = attentions(network, example)
    groups, fixed = channel_groups(network, example, {axis for each in found for axis in each.axes})
    with_heads, of_heads = _with_heads(network, example, groups, found)
    fixed |= of_heads
    for parameter, before in zip(network.parameters(), asked, strict=True):
        parameter.requires_grad_(before)
    wanted: dict[ChannelGroup, tuple[int, ...]] = {}
    barred = _reused(network, example) | _tied(network) | _parametrised(network)
    for group in with_heads:
        names = [member.axis.name for member in group.members]
        shared = next((barred[name] for name in names if name in barred), "")
        widths = options(group)
        if is_output(network, group, example, output):
            fixed[group.name] = "its channels are outputs of the network"
        elif shared:
            fixed[group.name] = shared
        elif any(_within(name, keep) for name in names):
            fixed[group.name] = "it was asked to stay as it is"
        elif widths[0] == group.channels:
            each = group.unit if group.heads else math.lcm(step, group.unit)
            fixed[group.name] = (
                f"{group.channels} channels leave no smaller multiple of {each} at these widths"
            )
        else:
            wanted[group] = widths
    grouped = {member.axis.name for group in with_heads for member in group.members}
    return wanted, {name: why for name, why in barred.items() if name not in grouped} | fixed


def _with_heads(
    network: nn.Module,
    example: Tensor,
    groups: Sequence[ChannelGroup],
    found: Sequence[Attention],
) -> tuple[list[ChannelGroup], dict[str, str]]:
    """All groups, with those of heads, alone or as part of the width; and why others are not."""
    alone = head_groups(network, example, found)
    left = [attention for attention in found if attention not in alone]
    together: list[ChannelGroup] = []
    for group in groups:
        axes = {member.axis for member in group.members}
        inside = [attention for attention in left if Axis(attention.makers[0], "in") in axes]
        joined = with_width(network, example, group, inside) if inside else None
        left = left if joined is None else [a for a in left if a not in inside]
        together.append(joined or group)
    return [*together, *alone.values()], {attention.name: _STIFF_HEADS for attention in left}


def _options(group: ChannelGroup, parts: Sequence[float], step: int) -> tuple[int, ...]:
    each = group.unit if group.heads else math.lcm(step, group.unit)
    rounded = {math.ceil(part * group.channels / each - 1e-9) * each for part in parts}
    return (*sorted(w for w in rounded if w < group.channels), group.channels)


def _depths(
    network: nn.Module, example: Tensor, output: Tensor, smallest: float, keep: Sequence[str]
) -> tuple[dict[Run, tuple[int, ...]], dict[str, str]]:
    runs = [
        run
        for run in residual_runs(network, example)
        if len(run.depths(smallest)) > 1 and not any(_within(b, keep) for b in run.blocks)
    ]
    good, reasons = skippable(network, runs, smallest, example, output)
    return {run: run.depths(smallest) for run in good}, reasons


def _reused(network: nn.Module, example: Tensor) -> dict[str, str]:
    """Layers with weights that run more than once, which would be cut for all of their places."""
    calls: dict[str, int] = {}
    handles = []
    for name, module in network.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            calls[name] = 0

            def count(module: nn.Module, args: object, name: str = name) -> None:
                calls[name] += 1

            handles.append(module.register_forward_pre_hook(count))
    try:
        checked_output(network, example)
    finally:
        for handle in handles:
            handle.remove()
    return {
        name: f"{name!r} runs {number} times in one pass; give each place a module of its own"
        for name, number in calls.items()
        if number > 1
    }


def _tied(network: nn.Module) -> dict[str, str]:
    """Layers that share a parameter with another layer."""
    owner: dict[int, str] = {}
    found: dict[str, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        first = owner.setdefault(id(parameter), name)
        if first != name:
            why = f"{first!r} and {name!r} are one parameter; give each layer its own"
            for each in (first, name):
                found |= {each: why, each.rpartition(".")[0]: why}
    return found


def _parametrised(network: nn.Module) -> dict[str, str]:
    """Layers whose weights are computed from others, such as by weight normalisation."""
    return {
        name: f"the weight of {name!r} is parametrised; apply torch.nn.utils.parametrize."
        "remove_parametrizations"
        for name, module in network.named_modules()
        if parametrize.is_parametrized(module)
    }


def _within(name: str, modules: Iterable[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _check_options(
    model: nn.Module,
    example: Tensor,
    widths: Sequence[float],
    step: int,
    min_depth: float,
    keep: Sequence[str],
) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"space elastic: the model is a {type(model).__name__}; expected a torch.nn.Module"
        )
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise ConfigError(
            f"space elastic: the model is a {type(model).__name__}, whose code is settled; give "
            "the plain module that was scripted, traced or compiled"
        )
    if not isinstance(example, Tensor) or example.dim() != 4 or not len(example):
        given = tuple(example.shape) if isinstance(example, Tensor) else type(example).__name__
        raise ConfigError(f"space elastic: example_input is {given}; expected images (N, C, H, W)")
    if not widths or not all(0 < part <= 1 for part in widths):
        raise ConfigError(f"space elastic: widths are {list(widths)}; expected parts in (0, 1]")
    if step < 1:
        raise ConfigError(f"space elastic: step is {step}; expected at least 1")
    if not 0 <= min_depth <= 1:
        raise ConfigError(f"space elastic: min_depth is {min_depth}; expected a part in [0, 1]")
    names = {name for name, _ in model.named_modules()}
    for name in keep:
        if name not in names:
            raise ConfigError(f"space elastic: keep has {name!r}, which the model has not")
