"""Zero-cost proxies: scores of untrained networks, which need no training.

The scores order networks; none is a prediction of an accuracy. ``experiments/zero_cost`` evaluates
them on networks whose accuracy is known. All proxies work on a copy and leave the network
unchanged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hwnas.errors import ConfigError
from hwnas.search_spaces import Architecture, SearchSpace

__all__ = ["ZeroCost", "meco", "naswot", "proxies_of", "synflow", "zero_cost"]

IMAGES = 16
_CHANNELS = 8

_Function = Callable[..., Any]
_RECTIFIERS: frozenset[_Function] = frozenset({
    torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu, functional.relu6,
    functional.leaky_relu, functional.prelu, functional.rrelu, functional.elu, functional.celu,
    functional.selu, functional.gelu, functional.silu, functional.mish, functional.hardswish,
    functional.softplus,
})  # fmt: skip
_GATES: frozenset[_Function] = frozenset({
    torch.sigmoid, Tensor.sigmoid, functional.sigmoid, functional.hardsigmoid,
})  # fmt: skip
_NORMS: frozenset[_Function] = frozenset({
    functional.batch_norm, functional.layer_norm, functional.group_norm, functional.instance_norm,
    functional.rms_norm,
})  # fmt: skip
_CONVOLUTIONS: frozenset[_Function] = frozenset({
    functional.conv1d, functional.conv2d, functional.conv3d,
})  # fmt: skip


@dataclass(frozen=True)
class ZeroCost:
    """Zero-cost proxy scores of one network; higher is better in each.

    Attributes:
        naswot: Difference of the activations between images, see `naswot`.
        synflow: Synaptic flow through the weights, see `synflow`; 0 if nothing flows.
        meco: Independence of the feature maps of each other, see `meco`.
    """

    naswot: float
    synflow: float
    meco: float

    def as_dict(self) -> dict[str, float]:
        """Return the scores by name."""
        return asdict(self)


def zero_cost(
    network: nn.Module,
    input_shape: tuple[int, int, int],
    images: Tensor | None = None,
    *,
    seed: int = 0,
) -> ZeroCost:
    """Return all scores of one network.

    Args:
        network: Freshly initialised network that takes (N, *input_shape).
        input_shape: Channels, height and width.
        images: Images, float32 (N, *input_shape), N at least 2; if None, 16 of random pixels.
            `naswot` takes as long as a forward pass of all of them.
        seed: Seed of images that are drawn.

    Raises:
        ConfigError: See `naswot`, `synflow` and `meco`; or the images are of another shape.
    """
    if images is None:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(IMAGES, *input_shape, generator=generator)
    elif images.shape[1:] != input_shape:
        raise ConfigError(f"got {tuple(images.shape)=}; expected (N, *{tuple(input_shape)})")
    return ZeroCost(naswot(network, images), synflow(network, input_shape), meco(network, images))


def proxies_of(space: SearchSpace, architecture: Architecture, seed: int = 0) -> ZeroCost:
    """Return all scores of one network of a space.

    Args:
        space: Space that builds the network.
        architecture: Architecture of the network.
        seed: Seed of the weights and of the images; the same seed gives the same scores.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = space.build(architecture)
    return zero_cost(network, space.input_shape(architecture), seed=seed)


def naswot(network: nn.Module, images: Tensor) -> float:
    """Return the log-determinant of the kernel of binary codes.

    Mellor et al., "Neural Architecture Search without Training", ICML 2021, equations 1 and 2: the
    code of an image says which rectifiers let it through, K[i, j] is the number of rectifiers that
    agree on images i and j, and the score is log det K. There are two departures. A rectifier other
    than ReLU (hard-swish, GELU, SiLU, ...) counts as on where its input is positive. The identity
    is added to K, as if one more rectifier told each image from all others, so that the score is
    finite if two images have the same code. Batch normalisation uses the statistics of the images.

    Args:
        network: Network that takes images of this shape.
        images: Images, float32 (N, C, H, W), N at least 2.

    Returns:
        Score between log(1 + N A) and N log(1 + A) for A rectifiers.

    Raises:
        ConfigError: There are fewer than 2 images, the network does not take them, or it has no
            rectifier.
    """
    if images.ndim != 4 or len(images) < 2:
        raise ConfigError(f"got {tuple(images.shape)=}; expected (N, C, H, W) with N at least 2")
    codes = _Codes(len(images))
    with torch.no_grad():
        _run(_evaluated(network, batch_statistics=True), images, codes)
    if not codes.units:
        raise ConfigError(
            f"{type(network).__name__} has no activation such as relu, hardswish or gelu, so "
            "naswot does not apply to it"
        )
    kernel = codes.agreeing + torch.eye(len(images), dtype=torch.float64)
    return float(torch.linalg.slogdet(kernel).logabsdet)


def synflow(network: nn.Module, input_shape: tuple[int, int, int]) -> float:
    """Return the log of the synaptic flow, log(1 + sum over weights of w dR/dw).

    Tanaka et al., "Pruning neural networks without any data by iteratively conserving synaptic
    flow", NeurIPS 2020, equation 2: R is the sum of the outputs for an image of ones and the
    absolute values of all weights. For this the network is made linear: activations and
    normalisations are left out, gates (sigmoid) are open, and biases are 0. So the score depends on
    paths and weights, and not on saturation.

    Args:
        network: Network that takes (1, *input_shape).
        input_shape: Channels, height and width.

    Returns:
        Score of at least 0, computed in float64; exactly 0 if no path leads from input to output.

    Raises:
        ConfigError: The network does not take such an image, has no weights, or is so deep and wide
            that its flow is too large for float64.
    """
    linear = _evaluated(network).double()
    with torch.no_grad():
        for name, parameter in linear.named_parameters():
            parameter.copy_(parameter.abs() * (not name.endswith("bias")))
    weights = [p.requires_grad_() for p in linear.parameters()]
    if not weights:
        raise ConfigError(f"{type(network).__name__} has no weights, so synflow does not apply")
    ones = torch.ones(1, *input_shape, dtype=torch.float64)
    with torch.enable_grad():
        outputs = [o for o in _run(linear, ones, _Linear()) if o.requires_grad]
        sums = [output.sum() for output in outputs]
        gradients = torch.autograd.grad(sums, weights, allow_unused=True) if sums else ()
    total = sum(
        float((w.detach() * g).sum())
        for w, g in zip(weights, gradients, strict=False)
        if g is not None
    )
    if not math.isfinite(total):
        raise ConfigError(f"the synaptic flow of {type(network).__name__} is too large for float64")
    return math.log1p(total)


def meco(network: nn.Module, images: Tensor) -> float:
    """Return the sum over layers of the smallest eigenvalue of the channels' correlation.

    After Jiang et al., "MeCo: Zero-Shot NAS with One Data and Single Forward Pass via Minimum
    Eigenvalue of Correlation", NeurIPS 2023. The layers are convolutions and linear layers on
    tokens. Of each output for one image, only the first 8 channels count (the weights are random,
    so these are as good as any). That is the shortcut that the authors call MeCo_opt, but without
    its larger weight for wider layers, which made the ranking worse.

    Args:
        network: Network that takes images of this shape.
        images: Images, float32 (N, C, H, W); only the first is used.

    Returns:
        Score between 0 and the number of layers.

    Raises:
        ConfigError: The network does not take the image, or has no such layer.
    """
    correlations = _Correlations()
    with torch.no_grad():
        _run(_evaluated(network), images[:1], correlations)
    if not correlations.layers:
        raise ConfigError(
            f"{type(network).__name__} has no convolution and no linear layer on tokens, so meco "
            "does not apply to it"
        )
    return correlations.total


class _Codes(TorchFunctionMode):
    """Mode that counts, for each pair of images, the rectifiers that agree on both."""

    def __init__(self, images: int) -> None:
        super().__init__()
        self.units = 0
        self.agreeing = torch.zeros(images, images, dtype=torch.float64)

    def __torch_function__(
        self, func: _Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _RECTIFIERS:
            signs = (args[0].flatten(1) > 0).float() * 2 - 1
            self.units += signs.shape[1]
            # If k of n signs agree, their product is k - (n - k). Integers: exact.
            self.agreeing += ((signs @ signs.T).double() + signs.shape[1]) / 2
        return func(*args, **(kwargs or {}))


class _Linear(TorchFunctionMode):
    """Mode that leaves out what makes a network nonlinear in its weights and in its input."""

    def __torch_function__(
        self, func: _Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _RECTIFIERS or func in _NORMS:
            return args[0]
        if func in _GATES:
            return torch.ones_like(args[0])
        return func(*args, **(kwargs or {}))


class _Correlations(TorchFunctionMode):
    """Mode that adds up smallest eigenvalues, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.total = 0, 0.0

    def __torch_function__(
        self, func: _Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _CONVOLUTIONS:
            self._add(result[0].flatten(1))
        elif func is functional.linear and result.ndim == 3:
            self._add(result[0].T)
        return result

    def _add(self, channels: Tensor) -> None:
        """Add a layer's output for one image, of shape (channels, positions)."""
        if channels.shape[1] < 2:
            return  # the vector of a gate has one position only
        self.layers += 1
        centred = channels[:_CHANNELS].double()
        centred = centred - centred.mean(1, keepdim=True)
        lengths = centred.norm(dim=1, keepdim=True)
        unit = centred / lengths.clamp_min(torch.finfo(torch.float64).tiny)
        self.total += max(float(torch.linalg.eigvalsh(unit @ unit.T)[0]), 0.0)


def _evaluated(network: nn.Module, batch_statistics: bool = False) -> nn.Module:
    """Return a copy on the CPU in evaluation mode, or with batch normalisation as in training."""
    made = copy.deepcopy(network).eval().cpu()
    for module in made.modules():
        if batch_statistics and isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    return made


def _run(network: nn.Module, images: Tensor, watching: TorchFunctionMode) -> list[Tensor]:
    try:
        with watching:
            outputs = network(images)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{type(network).__name__} cannot run on images of {tuple(images.shape)}: {reason}"
        ) from error
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]
