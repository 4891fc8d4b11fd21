"""Detection of the channels that can be narrowed, and their possible widths; all are tested."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from hwnas.search_spaces.any_model.axes import Axis
from hwnas.search_spaces.any_model.groups import ChannelGroup, channel_groups
from hwnas.search_spaces.any_model.heads import AttentionHeads, attentions, head_groups, with_width
from hwnas.search_spaces.any_model.trial import checked_output, cuttable, is_output, permutable

__all__ = ["all_groups", "narrow_groups", "within"]

_STIFF_HEADS = (
    "its heads cannot be left out: its forward or its layers have a fixed number of heads"
)


def narrow_groups(
    network: nn.Module,
    example: Tensor,
    output: Tensor,
    options: Callable[[ChannelGroup], tuple[int, ...]],
    step: int,
    keep: Sequence[str] = (),
) -> tuple[dict[ChannelGroup, tuple[int, ...]], dict[str, str]]:
    """Return the groups of channels that can be narrowed, with their widths; each group is tested.

    Args:
        network: Network in evaluation mode.
        example: Input of the network.
        output: Output of the network for the example.
        options: Function that returns the widths of a group, increasing.
        step: Number that widths are multiples of, for the reasons.
        keep: Names of modules whose channels stay.

    Returns:
        The widths of each group that has narrower ones, and the reason for each layer that is in no
        such group, by layer name.
    """
    groups, fixed = all_groups(network, example)
    wanted, reasons = _wanted(network, example, output, groups, options, step, keep)
    fixed = reasons | fixed
    good, reasons = permutable(network, list(wanted), example)
    fixed |= reasons
    good, reasons = cuttable(network, {g: wanted[g][0] for g in good}, example, output)
    fixed |= reasons
    tied = {
        member.axis.name: fixed[group.name]
        for group in groups
        for member in group.members
        if group.name in fixed and not group.heads and _makes(network, member.axis)
    }
    return {group: wanted[group] for group in good}, tied | fixed


def within(name: str, modules: Iterable[str]) -> bool:
    """Return whether a name is that of one of the modules, or of something inside one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _makes(network: nn.Module, axis: Axis) -> bool:
    """Return whether an axis is the output of a layer that computes new channels."""
    layer = network.get_submodule(axis.name) if axis.side == "out" else None
    return isinstance(layer, nn.Linear) or (isinstance(layer, _ConvNd) and layer.groups == 1)


def all_groups(network: nn.Module, example: Tensor) -> tuple[list[ChannelGroup], dict[str, str]]:
    """Return the groups of the network's graph, and the reasons for layers that are in none."""
    asked = [p.requires_grad for p in network.parameters()]
    network.requires_grad_(True)
    found = attentions(network, example)
    axes = {axis for each in found for axis in each.axes}
    groups, fixed = channel_groups(network, example, axes)
    with_heads, of_heads = _with_heads(network, example, groups, found)
    for parameter, before in zip(network.parameters(), asked, strict=True):
        parameter.requires_grad_(before)
    return with_heads, fixed | of_heads


def _wanted(
    network: nn.Module,
    example: Tensor,
    output: Tensor,
    groups: Sequence[ChannelGroup],
    options: Callable[[ChannelGroup], tuple[int, ...]],
    step: int,
    keep: Sequence[str],
) -> tuple[dict[ChannelGroup, tuple[int, ...]], dict[str, str]]:
    """Return the widths of all groups that have narrower ones, and the reasons for other groups."""
    fixed: dict[str, str] = {}
    wanted: dict[ChannelGroup, tuple[int, ...]] = {}
    barred = _reused(network, example) | _tied(network) | _parametrised(network)
    for group in groups:
        names = [member.axis.name for member in group.members]
        shared = next((barred[name] for name in names if name in barred), "")
        widths = options(group)
        if is_output(network, group, example, output):
            fixed[group.name] = "its channels are outputs of the network"
        elif shared:
            fixed[group.name] = shared
        elif any(within(name, keep) for name in names):
            fixed[group.name] = "it is listed in keep"
        elif widths[0] == group.channels:
            each = group.unit if group.heads else math.lcm(step, group.unit)
            fixed[group.name] = (
                f"{group.channels} channels leave no smaller multiple of {each} at these widths"
            )
        else:
            wanted[group] = widths
    grouped = {member.axis.name for group in groups for member in group.members}
    modules = {name for name, _ in network.named_modules()} - grouped
    return wanted, {name: why for name, why in barred.items() if name in modules} | fixed


def _with_heads(
    network: nn.Module,
    example: Tensor,
    groups: Sequence[ChannelGroup],
    found: Sequence[AttentionHeads],
) -> tuple[list[ChannelGroup], dict[str, str]]:
    """Return all groups, including those of heads, and the reasons for heads in no group.

    Heads form a group of their own, or are part of a group whose width decides their number.
    """
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


def _reused(network: nn.Module, example: Tensor) -> dict[str, str]:
    """Return the reasons for layers with weights that run more than once, by layer name.

    Such a layer would be cut for all of its calls.
    """
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
        name: f"{name!r} runs {number} times in one pass; use a separate module for each call"
        for name, number in calls.items()
        if number > 1
    }


def _tied(network: nn.Module) -> dict[str, str]:
    """Return the reasons for layers that share a parameter with another layer, by name."""
    owner: dict[int, str] = {}
    found: dict[str, str] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        first = owner.setdefault(id(parameter), name)
        if first != name:
            why = f"{first!r} and {name!r} share one parameter; give each layer its own"
            for each in (first, name):
                found |= {each: why, each.rpartition(".")[0]: why}
    return found


def _parametrised(network: nn.Module) -> dict[str, str]:
    """Return the reasons for layers whose weights are computed from others, by layer name.

    Weight normalisation is an example.
    """
    return {
        name: f"the weight of {name!r} is parametrised; apply torch.nn.utils.parametrize."
        "remove_parametrizations"
        for name, module in network.named_modules()
        if parametrize.is_parametrized(module)
    }
