"""Pairs of a convolution and the batch normalisation that follows it."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from hwnas.search_spaces.layers import DepthwiseConv2d
from hwnas.search_spaces.layers.deformable import DeformableConv2d

__all__ = ["ConvNormPair", "conv_norm_pairs", "fold_norms"]

_CONVOLUTIONS = (nn.Conv2d, DepthwiseConv2d, DeformableConv2d)
"""Classes whose output is linear in their weights; a user's subclass may do anything with them."""


@dataclass(frozen=True, eq=False)
class ConvNormPair:
    """Convolution whose output nothing but a batch normalisation reads.

    Attributes:
        conv_name: Dotted name of the convolution in the network.
        conv: The convolution.
        norm_name: Dotted name of the batch normalisation.
        norm: The batch normalisation, which has running statistics.
    """

    conv_name: str
    conv: nn.Conv2d
    norm_name: str
    norm: nn.BatchNorm2d


def conv_norm_pairs(network: nn.Module) -> list[ConvNormPair]:
    """Return the pairs of a network: neighbours in a Sequential, and those that a trace shows.

    The trace is that of torch.fx, which some networks do not allow, such as those whose control
    flow depends on values; for these, pairs outside of a Sequential are not found.
    """
    modules = dict(network.named_modules())
    pairs = list(_pairs(modules, _neighbours(modules)))
    if len(pairs) < sum(isinstance(module, nn.BatchNorm2d) for module in modules.values()):
        known = {pair.norm_name for pair in pairs}
        traced = _pairs(modules, _traced(network))
        pairs += [pair for pair in traced if pair.norm_name not in known]
    return pairs


def fold_norms(network: nn.Module) -> None:
    """Fold the normalisations of a network in evaluation mode into the convolutions before them."""
    for pair in conv_norm_pairs(network):
        network.set_submodule(pair.conv_name, fuse_conv_bn_eval(pair.conv, pair.norm))
        network.set_submodule(pair.norm_name, nn.Identity())


def _pairs(
    modules: dict[str, nn.Module], names: Iterable[tuple[str, str]]
) -> Iterator[ConvNormPair]:
    """Yield those of some pairs of modules that are a convolution and a normalisation."""
    for conv_name, norm_name in names:
        conv, norm = modules[conv_name], modules[norm_name]
        if (
            isinstance(conv, nn.Conv2d)
            and type(conv) in _CONVOLUTIONS
            and type(norm) is nn.BatchNorm2d
            and norm.track_running_stats
        ):
            yield ConvNormPair(conv_name, conv, norm_name, norm)


def _neighbours(modules: dict[str, nn.Module]) -> Iterator[tuple[str, str]]:
    """Yield the names of all neighbours in a Sequential."""
    for name, module in modules.items():
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            prefix = f"{name}." if name else ""
            children = [prefix + child for child, _ in module.named_children()]
            yield from itertools.pairwise(children)


class _Tracer(fx.Tracer):
    """Tracer that does not look into convolutions and normalisations of the user's own classes."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, nn.Conv2d | nn.BatchNorm2d):
            return True
        return super().is_leaf_module(m, module_qualified_name)


def _traced(network: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of modules, each called once, of which the second alone reads the first."""
    try:
        # A copy, since a forward pass that stores its tensors would store the tracer's proxies.
        graph = _Tracer().trace(copy.deepcopy(network))
    except Exception:  # code of the network's author may raise anything for a proxy
        return
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(node.target for node in calls)
    for after in calls:
        before = after.args[0] if after.args else None
        if (
            isinstance(before, fx.Node)
            and before.op == "call_module"
            and len(before.users) == times[before.target] == times[after.target] == 1
        ):
            yield str(before.target), str(after.target)
