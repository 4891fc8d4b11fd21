"""Supernet of once-for-all (Cai et al., ICLR 2020; PyPI ``ofa``), and ours of the same shape."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

from torch import nn

from hwnas.errors import ConfigError, DeviceError
from hwnas.search_spaces import Architecture, MobileNetSpace, mobilenet, trace

__all__ = ["CLASSES", "SIDE", "check_same", "our_space", "settings_of", "their_supernet"]

SIDE = 64
"""Height and width of the images, in pixels."""
CLASSES = 1000

_PACKAGE = "ofa==0.1.0.post202307202001"
_DEEPEST = 4
_WITH_WEIGHTS = ("conv", "depthwise", "pointwise", "linear")
_STUBS = ("torchvision", *(f"torchvision.{name}" for name in ("transforms", "datasets")))
_STUBS += ("torchvision.transforms.functional",)


def our_space() -> MobileNetSpace:
    """Return once-for-all's search space of width 1.0, at one resolution."""
    return mobilenet((SIDE, SIDE, 3), CLASSES, preset="ofa-w1.0", resolution=(SIDE,))


def their_supernet(folder: Path | None) -> Any:
    """Return an ``OFAMobileNetV3`` of width 1.0.

    Args:
        folder: Folder in which ``ofa`` is installed; None if it is installed with the other
            packages.

    Raises:
        ConfigError: Package ``ofa`` is not installed.
    """
    if folder is not None and str(folder) not in sys.path:
        sys.path.append(str(folder))
    if importlib.util.find_spec("ofa") is None:
        raise ConfigError(
            "package ofa is not installed; run `.venv/bin/pip install --no-deps --target FOLDER "
            f"{_PACKAGE}` and give --ofa FOLDER"
        )
    _stub_torchvision()
    networks = importlib.import_module("ofa.imagenet_classification.elastic_nn.networks")
    return networks.OFAMobileNetV3(
        n_classes=CLASSES,
        dropout_rate=0.1,
        width_mult=1.0,
        ks_list=[3, 5, 7],
        expand_ratio_list=[3, 4, 6],
        depth_list=[2, 3, 4],
    )


class _Anything(types.ModuleType):
    """Module in which every name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _stub_torchvision() -> None:
    """Put empty modules in place of torchvision, so that ``ofa`` can be imported without it.

    Package ``ofa`` imports only image loaders from torchvision, which are not used here. Not every
    build of torch has a torchvision.
    """
    for name in _STUBS:
        if name not in sys.modules:
            module = _Anything(name)
            module.__path__ = []
            sys.modules[name] = module
            parent, _, leaf = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], leaf, module)


def settings_of(space: MobileNetSpace, architecture: Architecture) -> dict[str, list[int]]:
    """Return the arguments of their ``set_active_subnet`` for one of our architectures."""
    values = architecture.as_dict()
    places = [
        f"stage{stage}.block{block}"
        for stage in range(1, len(space.config.stages))
        for block in range(_DEEPEST)
    ]
    return {
        # The kernel size and expansion ratio of a block that does not exist make no difference.
        "ks": [int(values.get(f"{place}.kernel_size", 3)) for place in places],
        "e": [int(values.get(f"{place}.expand_ratio", 3)) for place in places],
        "d": [int(values[f"stage{s}.depth"]) for s in range(1, len(space.config.stages))],
    }


def check_same(space: MobileNetSpace, architecture: Architecture, theirs: Any) -> None:
    """Check that an architecture has the same size in both supernets.

    Raises:
        DeviceError: The two networks differ in multiply-accumulates or parameters.
    """
    theirs.set_active_subnet(**settings_of(space, architecture))
    plain: nn.Module = theirs.get_active_subnet(preserve_weight=False)
    shape = space.input_shape(architecture)
    network = space.build(architecture)
    sizes = [_size(each, shape) for each in (network, plain)]
    if sizes[0] != sizes[1]:
        raise DeviceError(
            f"{architecture.id} has {sizes[0]} multiply-accumulates and parameters here and "
            f"{sizes[1]} in ofa; expected equal numbers, so install {_PACKAGE}"
        )


def _size(network: nn.Module, shape: tuple[int, int, int]) -> tuple[int, int]:
    """Return the multiply-accumulates of layers with weights, and the number of parameters.

    Products without weights do not count: once-for-all composes activations of several operators
    where we have one.
    """
    found = trace(network, shape).operators
    macs = sum(each.macs for each in found if each.kind in _WITH_WEIGHTS)
    return macs, sum(parameter.numel() for parameter in network.parameters())
