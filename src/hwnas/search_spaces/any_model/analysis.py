"""Construction of the space of the networks within a model."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.search_spaces.any_model.blocks import ResidualRun, residual_runs
from hwnas.search_spaces.any_model.cutting import reorder
from hwnas.search_spaces.any_model.groups import ChannelGroup
from hwnas.search_spaces.any_model.importance import importance_order
from hwnas.search_spaces.any_model.multihead import with_separate_heads
from hwnas.search_spaces.any_model.narrowing import narrow_groups, within
from hwnas.search_spaces.any_model.space import ElasticSpace, FixedModule
from hwnas.search_spaces.any_model.trial import (
    check_traceable,
    checked_output,
    skippable,
)

__all__ = ["elastic"]


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
    """Return the space of all narrower and shallower networks within a model, with its weights.

    Channels that can only be cut together become one choice. They are sorted such that narrow
    networks keep the most important ones. Residual blocks that keep the shape of their input may
    be skipped. The model itself is left unchanged.

    Args:
        model: Network that takes images (N, C, H, W) and returns one tensor. Its weights become
            those of the supernet.
        example_input: Input of the model, at least one image. The only thing learned from it is
            which residual blocks change it least.
        widths: Shares of the channels that may remain, each in (0, 1]; widths are rounded up to the
            step.
        step: Widths are multiples of this number, or all channels.
        min_depth: Smallest share of each run of residual blocks that remains, in [0, 1]; the number
            of blocks is rounded down.
        keep: Names of modules whose layers and blocks stay unchanged.
        pretrained: Whether the model is trained, so that a supernet may learn from it.

    Returns:
        The space; its ``fixed`` lists what is not elastic, with reasons.

    Raises:
        ConfigError: An option is out of range, the model cannot be traced, or no part of it can be
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
    listed = tuple(FixedModule(name, reason) for name, reason in by_layer.items())
    shape = (example.shape[1], example.shape[2], example.shape[3])
    return ElasticSpace(network, shape, good, depths, listed, pretrained)


def _options(group: ChannelGroup, parts: Sequence[float], step: int) -> tuple[int, ...]:
    each = group.unit if group.heads else math.lcm(step, group.unit)
    rounded = {math.ceil(part * group.channels / each - 1e-9) * each for part in parts}
    return (*sorted(w for w in rounded if w < group.channels), group.channels)


def _depths(
    network: nn.Module, example: Tensor, output: Tensor, smallest: float, keep: Sequence[str]
) -> tuple[dict[ResidualRun, tuple[int, ...]], dict[str, str]]:
    runs = [
        run
        for run in residual_runs(network, example)
        if len(run.depths(smallest)) > 1 and not any(within(b, keep) for b in run.blocks)
    ]
    good, reasons = skippable(network, runs, smallest, example, output)
    return {run: run.depths(smallest) for run in good}, reasons


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
            f"space elastic: the model is a {type(model).__name__}, whose code cannot be changed; "
            "give the plain module, before scripting, tracing or compiling"
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
            raise ConfigError(f"space elastic: keep has {name!r}, but the model has no such module")
