"""What an untrained network tells about how well it may learn: scores that cost no training.

None is a prediction of an accuracy; they order networks. What they are worth on networks whose
accuracy is known is in ``experiments/zero_cost``. All work on a copy, so a network is left as it
was.
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
    """Scores of one network; more is better in each.

    Attributes:
        naswot: How differently the network's activations see different images, see `naswot`.
        synflow: How much flows through its weights, see `synflow`; 0 where nothing does.
        meco: How independent its feature maps are of each other, see `meco`.
    """

    naswot: float
    synflow: float
    meco: float

    def as_dict(self) -> dict[str, float]:
        """The scores by name."""
        return asdict(self)


def zero_cost(
    network: nn.Module,
    input_shape: tuple[int, int, int],
    images: Tensor | None = None,
    *,
    seed: int = 0,
) -> ZeroCost:
    """All scores of one network.

    Args:
        network: Freshly initialised; takes (N, *input_shape).
        input_shape: Channels, height and width.
        images: float32 (N, *input_shape), N at least 2; if None, 16 of random pixels.
            `naswot` takes as long as a forward pass of all of them.
        seed: Of images that are drawn.

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
    """All scores of one network of a space.

    Args:
        space: Builds the network.
        architecture: Which one.
        seed: Of its weights and of the images; the same seed gives the same scores.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = space.build(architecture)
    return zero_cost(network, space.input_shape(architecture), seed=seed)


def naswot(network: nn.Module, images: Tensor) -> float:
    """Log-determinant of the kernel of binary codes.

    Mellor et al., "Neural Architecture Search without Training", ICML 2021, equations 1 and 2: an
    image's code is which rectifiers let it through, K[i, j] the number of rectifiers that agree on
    images i and j, and the score is log det K. Two departures: a rectifier that is no ReLU
    (hard-swish, GELU, SiLU, ...) counts as on where its input is positive; and the identity is
    added to K, as if one more rectifier told each image from all others, so that the score is
    finite where two images have one code. Batch normalisation uses the statistics of the images.

    Args:
        network: Takes images of this shape.
        images: float32 (N, C, H, W), N at least 2.

    Returns:
        Between log(1 + N A) and N log(1 + A) for A rectifiers.

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
    """Log of the synaptic flow, log(1 + sum over weights of w dR/dw).

    Tanaka et al., "Pruning neural networks without any data by iteratively conserving synaptic
    flow", NeurIPS 2020, equation 2: R is the sum of the outputs for an image of ones and the
    absolute values of all weights. The network is made linear for it: activations and
    normalisations are left out, gates (sigmoid) are open, biases are 0, so the score tells paths
    and weights and no saturation.

    Args:
        network: Takes (1, *input_shape).
        input_shape: Channels, height and width.

    Returns:
        At least 0; 0 exactly where no path leads from input to output. Computed in float64.

    Raises:
        ConfigError: The network does not take such an image, has no weights, or is so deep and wide
            that its flow is no float64.
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
    """Sum over layers of the smallest eigenvalue of the correlation of channels, for one image.

    After Jiang et al., "MeCo: Zero-Shot NAS with One Data and Single Forward Pass via Minimum
    Eigenvalue of Correlation", NeurIPS 2023. Looked at are the outputs of convolutions and of
    linear layers on tokens, and of each only the first 8 channels (the weights are random, so these
    are as good as any). That is the shortcut that the authors call MeCo_opt, but without its larger
    weight for wider layers, which made the ranking worse.

    Args:
        network: Takes images of this shape.
        images: float32 (N, C, H, W); only the first is used.

    Returns:
        Between 0 and the number of layers.

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
    """Counts for each pair of images on how many rectifiers they agree."""

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
            # Of n signs, k agree where their product is k - (n - k). Whole numbers: exact.
            self.agreeing += ((signs @ signs.T).double() + signs.shape[1]) / 2
        return func(*args, **(kwargs or {}))


class _Linear(TorchFunctionMode):
    """Leaves out what makes a network not linear in its weights and in its input."""

    def __torch_function__(
        self, func: _Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _RECTIFIERS or func in _NORMS:
            return args[0]
        if func in _GATES:
            return torch.ones_like(args[0])
        return func(*args, **(kwargs or {}))


class _Correlations(TorchFunctionMode):
    """Adds up smallest eigenvalues, layer by layer."""

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
        """Take in a layer's output for one image, of shape (channels, positions)."""
        if channels.shape[1] < 2:
            return  # a gate's vector: nothing varies
        self.layers += 1
        centred = channels[:_CHANNELS].double()
        centred = centred - centred.mean(1, keepdim=True)
        lengths = centred.norm(dim=1, keepdim=True)
        unit = centred / lengths.clamp_min(torch.finfo(torch.float64).tiny)
        self.total += max(float(torch.linalg.eigvalsh(unit @ unit.T)[0]), 0.0)


def _evaluated(network: nn.Module, batch_statistics: bool = False) -> nn.Module:
    """A copy in evaluation mode, on the CPU; batch normalisations perhaps as in training."""
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
