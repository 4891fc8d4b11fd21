"""Workload of a network: its operators, their tensors, and the costs that follow from them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hwnas.errors import ConfigError

__all__ = ["NetworkOperator", "OperatorKind", "TensorSpec", "Workload", "flag_dead", "trace"]

_FLOAT_BITS = 32

OperatorKind = Literal[
    "conv", "pointwise", "depthwise", "linear", "matmul", "norm", "activation", "elementwise",
    "pool", "view", "other", "layer_norm",
]  # fmt: skip


@dataclass(frozen=True)
class TensorSpec:
    """Tensor that operators read or write.

    Attributes:
        id: Identifier, unique in its workload.
        shape: Sizes, batch first.
        role: A weight is read from the model file; inputs and activations live in memory.
        bits: Bits of one element.
        density: Share of elements that are not known to be zero, in (0, 1].
    """

    id: int
    shape: tuple[int, ...]
    role: Literal["input", "weight", "activation"]
    bits: int = 32
    density: float = 1.0

    @property
    def bytes(self) -> int:
        """Size in memory in bytes, stored densely."""
        return math.prod(self.shape) * self.bits // 8


@dataclass(frozen=True)
class NetworkOperator:
    """Operator of a network.

    Attributes:
        kind: Kind of operator. A ``"norm"`` has fixed statistics, as a batch normalisation has, so
            an export folds it. A ``"layer_norm"`` computes its statistics, so it remains.
        name: PyTorch's name of the operator, e.g. ``"convolution"``.
        inputs: Ids of the tensors that it reads, weights included.
        outputs: Ids of the tensors that it writes.
        macs: Multiply-accumulates of convolutions and matrix products, multiplications of channel
            gates; 0 for all else. The interpolation of a deformable convolution is not counted.
        kernel_size: Height of a convolution's kernel, 0 for others.
        stride: Stride of a convolution, 0 for others.
        dead: Whether no output of the network depends on its outputs.
        in_place: Whether its output shares the memory of its first input, as all views do.
    """

    kind: OperatorKind
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    macs: int = 0
    kernel_size: int = 0
    stride: int = 0
    dead: bool = False
    in_place: bool = False

    @property
    def folded(self) -> bool:
        """True for a batch normalisation, which an export folds into a convolution."""
        return "batch_norm" in self.name


@dataclass(frozen=True)
class Workload:
    """Directed acyclic graph of a network's operators, in the order of execution.

    Attributes:
        operators: All operators; dead ones are included and flagged.
        tensors: All tensors, by id.
        outputs: Ids of the network's outputs.
        params: Number of trainable parameters of the network.
    """

    operators: tuple[NetworkOperator, ...]
    tensors: tuple[TensorSpec, ...]
    outputs: tuple[int, ...]
    params: int

    @cached_property
    def id(self) -> str:
        """Content hash; equal for networks with the same operators, tensors and outputs."""
        return hashlib.sha256(
            repr((self.operators, self.tensors, self.outputs)).encode()
        ).hexdigest()[:12]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference at the traced batch size."""
        return sum(operator.macs for operator in self.operators)

    @property
    def bit_operations(self) -> int:
        """Multiply-accumulates of one inference, each times the bits of both factors (BitOPs)."""
        return self.macs * _FLOAT_BITS**2

    @property
    def weight_bytes(self) -> int:
        """Size of all weights that operators read, in bytes."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.role == "weight")

    def bytes_moved(self, operator: NetworkOperator) -> int:
        """Return the bytes that an operator reads and writes, each tensor once."""
        return sum(self.tensors[i].bytes for i in {*operator.inputs, *operator.outputs})

    @cached_property
    def peak_activation_bytes(self) -> int:
        """Largest total bytes of inputs and activations alive at once, in execution order."""
        return self._peak({tensor.id: tensor.bytes for tensor in self.tensors})

    @cached_property
    def peak_int8_activation_bytes(self) -> int:
        """The same with one byte for each element, as of a network in int8."""
        return self._peak({tensor.id: math.prod(tensor.shape) for tensor in self.tensors})

    def _peak(self, sizes: Mapping[int, int]) -> int:
        """Return the largest total size of inputs and activations alive at once.

        Args:
            sizes: Size of each tensor, by its id.
        """
        buffer = self._buffers()
        last_use = {
            buffer[i]: step
            for step, operator in enumerate(self.operators)
            for i in (*operator.inputs, *operator.outputs)
        }
        last_use |= {buffer[i]: len(self.operators) for i in self.outputs}
        alive = {t.id for t in self.tensors if t.role == "input"}
        peak = sum(sizes[i] for i in alive)
        for step, operator in enumerate(self.operators):
            alive |= {buffer[i] for i in operator.outputs}
            alive -= self._weights
            peak = max(peak, sum(sizes[i] for i in alive))
            alive = {i for i in alive if last_use.get(i, -1) > step}
        return peak

    @cached_property
    def _weights(self) -> set[int]:
        return {tensor.id for tensor in self.tensors if tensor.role == "weight"}

    def _buffers(self) -> dict[int, int]:
        """Return the tensor whose memory each tensor uses, by tensor id.

        A tensor uses its own memory, unless it is made in place.
        """
        buffer = {tensor.id: tensor.id for tensor in self.tensors}
        for operator in self.operators:
            if operator.in_place:
                buffer |= dict.fromkeys(operator.outputs, buffer[operator.inputs[0]])
        return buffer

    def counts(self) -> Counter[str]:
        """Return the number of live operators of each kind."""
        return Counter(operator.kind for operator in self.operators if not operator.dead)


_KINDS: dict[str, OperatorKind] = {
    "addmm": "linear", "mm": "linear", "bmm": "matmul", "baddbmm": "matmul",
    "native_batch_norm": "norm", "_native_batch_norm_legit": "norm",
    "_native_batch_norm_legit_no_training": "norm", "_batch_norm_with_update": "norm",
    "native_layer_norm": "layer_norm", "native_group_norm": "layer_norm",
    "relu": "activation", "hardswish": "activation", "hardsigmoid": "activation",
    "silu": "activation", "sigmoid": "activation", "gelu": "activation",
    "hardtanh": "activation", "tanh": "activation", "_softmax": "activation",
    "leaky_relu": "activation",
    "add": "elementwise", "mul": "elementwise", "sub": "elementwise", "div": "elementwise",
    "cat": "elementwise", "copy": "elementwise", "clone": "elementwise",
    "pixel_shuffle": "elementwise",
    "mean": "pool", "sum": "pool", "avg_pool2d": "pool", "max_pool2d_with_indices": "pool",
    "_adaptive_avg_pool2d": "pool", "amax": "pool",
    "upsample_bilinear2d": "pool", "upsample_nearest2d": "pool",
    "view": "view", "_unsafe_view": "view", "t": "view", "permute": "view", "transpose": "view",
    "unsqueeze": "view", "squeeze": "view", "expand": "view", "slice": "view", "select": "view",
    "detach": "view", "alias": "view", "split": "view", "chunk": "view", "unbind": "view",
}  # fmt: skip


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Dispatch mode that records every operator; in-place results get a tensor id of their own."""

    def __init__(self, weights: list[Tensor], inputs: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[NetworkOperator] = []
        self.tensors: list[TensorSpec] = []
        self._ids: dict[int, int] = {}
        self._weights = {id(weight) for weight in weights}
        # Kept because an id() is unique only while its object lives.
        self._alive: list[Tensor] = [*weights, *inputs]
        for tensor in inputs:
            self._new(tensor, "input")

    def _new(self, tensor: Tensor, role: Literal["input", "weight", "activation"]) -> int:
        self._alive.append(tensor)
        bits = tensor.element_size() * 8
        self.tensors.append(TensorSpec(len(self.tensors), tuple(tensor.shape), role, bits))
        self._ids[id(tensor)] = len(self.tensors) - 1
        return len(self.tensors) - 1

    def id_of(self, tensor: Tensor) -> int:
        """Return the id of a tensor; a tensor that no operator wrote becomes a weight."""
        return self._ids[id(tensor)] if id(tensor) in self._ids else self._new(tensor, "weight")

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = _meta_result(func, args, kwargs or {})
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [
            leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.numel()
        ]
        name = func._schema.name.split("::")[-1].rstrip("_")
        if not written or not read:
            return result
        if name == "max_pool2d_with_indices":
            # Only PyTorch's gradient uses the indices; a deployed network has none.
            written = written[:1]
        if _KINDS.get(name) == "view" and id(read[0]) in self._weights:
            for tensor in written:
                self._note_weight_view(read[0], tensor)
            return result
        inputs = tuple(self.id_of(tensor) for tensor in read)
        outputs = tuple(self._new(tensor, "activation") for tensor in written)
        operator = _describe(name, args, read, written, inputs, outputs)
        if operator.kind == "view" or func._schema.name.endswith("_"):
            operator = dataclasses.replace(operator, in_place=True)
        self.operators.append(operator)
        return result

    def _note_weight_view(self, weight: Tensor, view: Tensor) -> None:
        """Record a view of a weight.

        A transposed weight is still the same weight; a part of a weight is a smaller weight.
        """
        self._weights.add(id(view))
        self._alive.append(view)
        if view.numel() == weight.numel():
            self._ids[id(view)] = self.id_of(weight)


_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
_layouts: dict[Any, tuple[bool, list[_Layout | None]]] = {}
_LAYOUTS_KEPT = 65536


def _meta_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator on the meta device.

    PyTorch computes shapes in Python, in about 0.5 ms an operator. The networks of one space
    consist of the same few hundred operators, so the layouts of results are cached.
    """
    if func._schema.name.endswith("_"):
        return args[0]  # in place: nothing to compute, the same layout
    key = (func, _signature(args), _signature(tuple(kwargs.items())))
    known = _layouts.get(key)
    if known is None:
        result = func(*args, **kwargs)
        parts = list(result) if isinstance(result, tuple | list) else [result]
        if all(part is None or isinstance(part, Tensor) for part in parts):
            if len(_layouts) >= _LAYOUTS_KEPT:
                _layouts.clear()
            layouts = [p if p is None else (tuple(p.shape), p.stride(), p.dtype) for p in parts]
            _layouts[key] = isinstance(result, Tensor), layouts
        return result
    single, layouts = known
    made = [
        None if layout is None else torch.empty_strided(*layout[:2], dtype=layout[2], device="meta")
        for layout in layouts
    ]
    return made[0] if single else tuple(made)


def _signature(value: Any) -> Any:
    """Return a hashable key of the arguments that determine the layout of a result.

    Types are part of the key, because 1 == 1.0 == True.
    """
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(_signature(item) for item in value)
    return type(value), value


def _describe(
    name: str,
    args: tuple[Any, ...],
    read: list[Tensor],
    written: list[Tensor],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
) -> NetworkOperator:
    if name == "convolution":
        weight, groups = args[1], args[8]
        kind: OperatorKind = "conv"
        if groups == weight.shape[0] and weight.shape[1] == 1:
            kind = "depthwise"
        elif groups == 1 and weight.shape[2:].numel() == 1:
            kind = "pointwise"
        transposed = args[6]  # then the kernel is applied to each input element, not output element
        macs = (read if transposed else written)[0].numel() * weight[0].numel()
        return NetworkOperator(kind, name, inputs, outputs, macs, weight.shape[2], int(args[3][0]))
    kind = _KINDS.get(name, "other")
    macs = 0
    if kind in ("linear", "matmul"):
        macs = written[0].numel() * int(read[-2].shape[-1])
    elif name == "deform_conv2d":
        weight = args[2]
        macs = written[0].numel() * weight[0].numel()
        return NetworkOperator(kind, name, inputs, outputs, macs, weight.shape[2], int(args[3]))
    elif name == "mul" and len(read) == 2:
        macs = written[0].numel()
    return NetworkOperator(kind, name, inputs, outputs, macs)


def trace(network: nn.Module, input_shape: tuple[int, ...], batch: int = 1) -> Workload:
    """Return the workload of a module in evaluation mode, without computing any values.

    Args:
        network: Module that takes images of shape (batch, *input_shape). It is left unchanged.
        input_shape: Channels, height and width; for a part of a network, the shape of its input.
        batch: Batch size, at least 1.

    Raises:
        ConfigError: The module reads values of tensors, which do not exist in a trace.
    """
    weights = [*network.parameters(), *network.buffers()]
    params = sum(parameter.numel() for parameter in network.parameters())
    if not all(weight.is_meta for weight in weights):
        network = copy.deepcopy(network).to("meta")
        weights = [*network.parameters(), *network.buffers()]
    images = torch.empty((batch, *input_shape), device="meta")
    with _evaluating(network), torch.no_grad(), _Recorder(weights, [images]) as recorder:
        try:
            result = network(images)
        except (NotImplementedError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"{type(network).__name__} cannot be traced at {input_shape}: {reason}"
            ) from error
    outputs = tuple(
        recorder.id_of(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)
    )
    operators = flag_dead(recorder.operators, set(outputs))
    return Workload(operators, tuple(recorder.tensors), outputs, params)


@contextlib.contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def flag_dead(operators: list[NetworkOperator], needed: set[int]) -> tuple[NetworkOperator, ...]:
    """Return the same operators, flagged as dead if no ``needed`` tensor depends on them."""
    flagged = []
    for operator in reversed(operators):
        live = not needed.isdisjoint(operator.outputs)
        if live:
            needed |= set(operator.inputs)
        flagged.append(operator if live else dataclasses.replace(operator, dead=True))
    return tuple(reversed(flagged))
