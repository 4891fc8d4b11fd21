"""Network of an ONNX file as layers of PyTorch, which can be trained and made narrower."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.deploy.error_line import first_line
from hwnas.deploy.onnx.layers import layer_of, name_of_layer, padding_of
from hwnas.deploy.onnx.module import Node, OnnxModule
from hwnas.deploy.onnx.residual import ResidualBlock, with_residual_blocks
from hwnas.deploy.onnx.unbatched import UnbatchedGraph, for_one_number, unbatched
from hwnas.errors import ArtifactError, ConfigError
from hwnas.registry import Plugin

__all__ = ["PLUGINS", "OnnxNetwork", "trainable_network"]

_TOLERANCE = 1e-3  # relative to the largest output
_QUANTISED = ("DequantizeLinear", "QuantizeLinear")


class OnnxNetwork(nn.Module):
    """Layers and operators that run one after the other, from one input to one output.

    `trainable_network` makes it. Residual blocks are networks within it, which a search may skip.

    Args:
        graph: Graph that the parts belong to.
        parts: Nodes and residual blocks in the order of execution.
        layers: Layer that computes the output of a node, by name of the output.
        input_name: Name of the only input.
        output_name: Name of the only output.
        within: Name of this block; the names of its layers do not repeat it.
    """

    trained = True
    """The weights are those of the file."""

    input_shape: tuple[int, ...] = ()
    """Sizes of the input without the batch; unknown for blocks within."""

    def __init__(
        self,
        graph: UnbatchedGraph,
        parts: Sequence[Node | ResidualBlock],
        layers: Mapping[str, nn.Module],
        input_name: str,
        output_name: str,
        within: str = "",
    ) -> None:
        super().__init__()
        self._input, self._output = input_name, output_name
        self._calls: list[tuple[str, Node]] = []
        self._numbers: dict[str, Any] = {"": None}
        self._tensors: dict[str, str] = {}
        self._repeated = graph.repeated
        heads = {graph.heads[n] for part in parts for n in part.outputs if n in graph.heads}
        self.num_heads = heads.pop() if len(heads) == 1 else 1  # as PyTorch's attention tells it
        for index, part in enumerate(parts):
            if isinstance(part, ResidualBlock):
                self._add_block(graph, part, layers, index)
            elif part.outputs[0] in layers:
                self._add_layer(graph, part, layers[part.outputs[0]], index, within)
            else:
                self._add_operator(graph, part)
        self._last = {n: i for i, (_, node) in enumerate(self._calls) for n in node.inputs}

    def forward(self, images: Tensor) -> Tensor:
        """Return the output (N, ...) of an input (N, ...)."""
        values: dict[str, Any] = {self._input: images}
        for i, (path, node) in enumerate(self._calls):
            given = [self._value(name, values, images.shape[0]) for name in node.inputs]
            if path:
                values[node.outputs[0]] = self.get_submodule(path)(*given)
            else:
                values |= node.run(given)
            for name in node.inputs:
                if self._last[name] == i and name != self._output:
                    values.pop(name, None)
        output: Tensor = values[self._output]
        return output

    def _value(self, name: str, values: Mapping[str, Any], images: int) -> Any:
        if name in values:
            return values[name]
        if name in self._numbers:
            return self._numbers[name]
        tensor: Tensor = getattr(self, self._tensors[name])
        return tensor.expand(images, *tensor.shape[1:]) if name in self._repeated else tensor

    def _add_block(
        self,
        graph: UnbatchedGraph,
        block: ResidualBlock,
        layers: Mapping[str, nn.Module],
        index: int,
    ) -> None:
        own = [n for n in block.nodes() if n.outputs[0] in layers]
        prefix = _common([name_of_layer(node, index) for node in own])
        network = OnnxNetwork(graph, block.parts, layers, block.inputs[0], block.outputs[0], prefix)
        path = self._put(prefix or f"block{index}", network)
        self._calls.append((path, Node("Block", block.inputs, block.outputs, {})))

    def _add_layer(
        self, graph: UnbatchedGraph, node: Node, layer: nn.Module, index: int, within: str
    ) -> None:
        name = name_of_layer(node, index)
        source, [result] = node.inputs[0], node.outputs
        path = self._put(name.removeprefix(f"{within}.") if within else name, layer)
        if pads := padding_of(node, graph.ranks[source]):
            padded = f"{result}:padded"
            self._numbers[f"{padded}:pads"] = pads
            self._calls.append(("", Node("Pad", (source, f"{padded}:pads"), (padded,), {})))
            source = padded
        self._calls.append((path, Node(node.kind, (source,), (result,), {})))

    def _add_operator(self, graph: UnbatchedGraph, node: Node) -> None:
        for name in node.inputs:
            if name in graph.numbers:
                self._numbers[name] = graph.numbers[name]
            elif name in graph.tensors and name not in self._tensors:
                tensor = graph.tensors[name].detach().clone()
                tensor = tensor.float() if tensor.is_floating_point() else tensor
                key = _free(self, re.sub(r"\W", "_", name))
                if tensor.is_floating_point() and tensor.numel() > 1:
                    self.register_parameter(key, nn.Parameter(tensor))
                else:
                    self.register_buffer(key, tensor)
                self._tensors[name] = key
        self._calls.append(("", node))

    def _put(self, name: str, module: nn.Module) -> str:
        """Add a module, and return its name: the given one, or without dots if that is taken."""
        *holders, key = name.split(".")
        holder: nn.Module = self
        for each in holders:
            if not hasattr(holder, each):
                holder.add_module(each, nn.Module())
            inner = holder._modules.get(each)
            if type(inner) is not nn.Module:
                return self._put(_free(self, name.replace(".", "_")), module)
            holder = inner
        if hasattr(holder, key):
            return self._put(".".join([*holders, _free(holder, key)]), module)
        holder.add_module(key, module)
        return name


def trainable_network(path: Path) -> OnnxNetwork:
    """Return the network of an ONNX file with one input, whose sizes are fixed except the batch.

    Nodes with weights become layers of PyTorch, in evaluation mode, and other constants of floating
    point parameters. Nodes that add something to their input become one module, a residual block.

    Raises:
        ArtifactError: The file is missing or damaged, is quantised, or works for one number of
            images only.
        UnsupportedOperator: The file has unknown operators.
    """
    module = OnnxModule.load(path)
    if any(node.kind in _QUANTISED for node in module.nodes):
        raise ArtifactError(f"{path} is quantised; give the network in floating point")
    graph = unbatched(module, path)
    layers = {}
    for node in graph.nodes:
        layer = layer_of(node, graph.tensors, graph.ranks.get(node.inputs[0], 0))
        if layer is not None:
            layers[node.outputs[0]] = layer
    constants = {*graph.tensors, *graph.numbers}
    parts = with_residual_blocks(graph.nodes, constants, layers, graph.output_name)
    network = OnnxNetwork(graph, parts, layers, graph.input_name, graph.output_name).eval()
    network.input_shape = module.input_shape
    _check(network, module, path)
    return network


def _check(network: OnnxNetwork, module: OnnxModule, path: Path) -> None:
    """Raise an ArtifactError unless a network gives the outputs of its file, image by image."""
    images = torch.randn(2, *module.input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = torch.cat([module(image[None]) for image in images])
        try:
            found = network(images)
        except RuntimeError as error:  # of operators that got other sizes
            raise for_one_number(path, first_line(error)) from error
    if not (found - expected).abs().max() <= _TOLERANCE * expected.abs().max():
        raise ArtifactError(f"{path} gives other outputs in layers of PyTorch than node by node")


def _common(names: Sequence[str]) -> str:
    """Return the name of the innermost module that layers are in; empty if there is none.

    Layers without a dot in their name do not count: their place is not known.
    """
    levels = zip(*(name.split(".")[:-1] for name in names if "." in name), strict=False)
    return ".".join(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))


def _free(holder: nn.Module, name: str) -> str:
    """Return a name that a module has no attribute of, with a number appended if necessary."""
    number = 2
    free = name
    while hasattr(holder, free):
        free, number = f"{name}_{number}", number + 1
    return free


def _from_onnx(
    name: str, image_shape: tuple[int, int, int], outputs: int, pretrained: bool, folder: Path
) -> nn.Module:
    path = folder / Path(os.path.expandvars(name)).expanduser()
    height, width, channels = image_shape
    network, shape = trainable_network(path), (channels, height, width)
    if network.input_shape != shape:
        of_same_size = network.input_shape[1:] == shape[1:]
        advice = (
            "give images with as many channels"
            if of_same_size
            else "set data.size to the height and width of the model"
        )
        raise ConfigError(
            f"space.model: {path} takes images of shape {network.input_shape}, but the data has "
            f"images of {shape}; {advice}"
        )
    with torch.no_grad():
        found = network(torch.zeros(1, *shape)).shape
    if found[1:2] != (outputs,):
        raise ConfigError(
            f"space.model: {path} gives outputs of shape {tuple(found)} for one image; expected "
            f"{outputs} for each, as the data has. Give the data that the model was trained on"
        )
    return network


PLUGINS = (Plugin("model source", "onnx", _from_onnx, "Network of an ONNX file"),)
