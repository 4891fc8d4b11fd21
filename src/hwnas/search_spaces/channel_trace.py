"""The graph of a model's calls with the shapes of its tensors, or one clear error."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from hwnas.errors import ConfigError

__all__ = ["traced"]

_LAYERS = (_ConvNd, nn.Linear, _NormBase, nn.GroupNorm, nn.PReLU)


def traced(model: nn.Module, example: Tensor) -> tuple[fx.GraphModule, dict[fx.Node, torch.Size]]:
    """The calls of a model in evaluation mode, and the shapes of what they return.

    Args:
        model: Takes one tensor. It is left as it was.
        example: Such a tensor; only its shape matters.

    Raises:
        ConfigError: The model cannot be traced, or does not take the example.
    """
    copied = copy.deepcopy(model).to("meta").eval()
    tracer = _Tracer()
    try:
        graph = tracer.trace(copied)
    except Exception as error:  # a model may do anything while it is traced; say where it failed
        raise _untraceable(model, tracer.path, error) from error
    network = fx.GraphModule(tracer.root, graph)
    shapes = _Shapes(network, type(model).__name__)
    shapes.run(example.to("meta"))
    return network, shapes.found


class _Tracer(fx.Tracer):
    """Looks into all modules but layers, whatever class of the user's own they are."""

    def __init__(self) -> None:
        super().__init__()
        self.path = ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Layers with channels are not looked into."""
        return isinstance(m, _LAYERS) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, *rest: Any, **named: Any) -> Any:
        """Remember where the trace is, for an error."""
        outer, self.path = self.path, self.path_of_module(m)
        result = super().call_module(m, *rest, **named)
        self.path = outer  # not after an error: then it says where that was
        return result


class _Shapes(fx.Interpreter):
    """Runs a graph on the meta device and notes shapes."""

    def __init__(self, network: fx.GraphModule, name: str) -> None:
        super().__init__(network)
        self.extra_traceback = False
        self._name = name
        self.found: dict[fx.Node, torch.Size] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one call."""
        try:
            with torch.no_grad():
                result = super().run_node(n)
        except Exception as error:  # torch raises many kinds for sizes that do not fit
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(
                f"{self._name} does not take these images: {n.op.replace('_', ' ')} {n.target} "
                f"fails ({reason}). Images may be too small for its strides; give larger ones, or "
                "a model with fewer strides"
            ) from error
        if isinstance(result, Tensor):
            self.found[n] = result.shape
        return result


def _untraceable(model: nn.Module, path: str, error: Exception) -> ConfigError:
    """What a user can do about a model that torch.fx does not follow."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    line = f" at line {frames[-1].lineno} of {frames[-1].filename}" if len(frames) > 1 else ""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ConfigError(
        f"{type(model).__name__} cannot be traced: module {path or 'itself'!r}{line} fails "
        f"({reason}). Write its forward without branches or loops that depend on tensors or on "
        "their shapes, and give it one tensor"
    )
