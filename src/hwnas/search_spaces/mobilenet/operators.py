"""Blocks by name, for spaces that choose a whole block at each layer (FBNet)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.search_spaces.layers.branches import DILATED

__all__ = ["SKIP", "BlockShape", "block_shape", "check_fit", "checked_operators"]

SKIP = "skip"
_NAME = re.compile(r"k([1-9]\d?)_e([1-9]\d?)(?:_g([2-9]))?(_b|_d)?")


@dataclass(frozen=True)
class BlockShape:
    """Inverted bottleneck that always has an expansion layer.

    Attributes:
        kernel_size: Size of the depthwise kernel; odd.
        expand_ratio: Hidden channels as a multiple of the input's.
        groups: Groups of the pointwise convolutions.
        branches: Whether the depthwise convolution has dilated branches in training.
        deformable: Whether its taps are moved apart or together at each place.
    """

    kernel_size: int
    expand_ratio: int
    groups: int = 1
    branches: bool = False
    deformable: bool = False


def block_shape(name: str) -> BlockShape | None:
    """Return the block of this name; None for `SKIP`.

    Raises:
        ConfigError: The name is not that of a block.
    """
    if name == SKIP:
        return None
    found = _NAME.fullmatch(name)
    if found is None or int(found[1]) % 2 == 0:
        raise ConfigError(
            f"Stage.operators has {name!r}; expected {SKIP!r} or an odd kernel size and an "
            "expansion like 'k5_e6', with groups like 'k3_e1_g2', branches like 'k13_e3_b' or a "
            "deformable kernel like 'k3_e3_d'"
        )
    sizes, kind = (int(found[1]), int(found[2]), int(found[3] or 1)), found[4]
    shape = BlockShape(*sizes, branches=kind == "_b", deformable=kind == "_d")
    if shape.branches and shape.kernel_size not in DILATED:
        raise ConfigError(
            f"Stage.operators has {name!r}; blocks with branches have a kernel size of "
            f"{', '.join(map(str, DILATED))}"
        )
    if shape.deformable and shape.kernel_size != 3:
        raise ConfigError(f"Stage.operators has {name!r}; deformable blocks have a kernel of 3")
    return shape


def checked_operators(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, if the last block's weights contain those of all others.

    Raises:
        ConfigError: A name is wrong or repeated, or the last block is not the largest.
    """
    shapes = [block_shape(name) for name in names]
    if len(set(shapes)) < len(shapes):
        raise ConfigError(f"Stage.operators is {list(names)}; a block appears twice, remove one")
    if not shapes:
        return ()
    largest, blocks = shapes[-1], [shape for shape in shapes if shape is not None]
    if largest is None or largest.groups > 1 or any(_exceeds(each, largest) for each in blocks):
        raise ConfigError(
            f"Stage.operators is {list(names)}; the last has to be the largest in kernel and "
            "expansion, without groups, since it lends its weights to all others"
        )
    return tuple(names)


def check_fit(
    place: str, names: Sequence[str], inputs: int, outputs: int, stride: int, own: bool = False
) -> None:
    """Raise if a block cannot map ``inputs`` channels to ``outputs``.

    Args:
        place: Name of the stage, for the message.
        names: Names of the blocks.
        inputs: Input channels.
        outputs: Output channels.
        stride: Stride of the block.
        own: Whether each block has weights of its own.

    Raises:
        ConfigError: It cannot.
    """
    shapes = [block_shape(name) for name in names]
    if not own and any(s is not None and (s.branches or s.deformable) for s in shapes):
        raise ConfigError(
            f"{place}.operators has deformable blocks or blocks with branches, whose weights are "
            'not part of those of other blocks; set space.operator_weights = "own"'
        )
    for shape in shapes:
        if shape is not None and (inputs % shape.groups or outputs % shape.groups):
            raise ConfigError(
                f"{place}.operators has {shape.groups} groups, which do not divide the channels "
                f"{inputs} and {outputs}; choose other channels or leave that block out"
            )
    changes = stride != 1 or inputs != outputs
    if not own and names and shapes[-1] is not None and None in shapes and changes:
        hidden = inputs * shapes[-1].expand_ratio
        if outputs > hidden:
            raise ConfigError(
                f"{place}.operators may skip a block that takes {inputs} channels and gives "
                f"{outputs}; the pointwise convolution in its place uses the weights of an "
                f"expansion to only {hidden}. Choose a larger expansion or leave {SKIP!r} out"
            )


def _exceeds(block: BlockShape, largest: BlockShape) -> bool:
    return block.kernel_size > largest.kernel_size or block.expand_ratio > largest.expand_ratio
