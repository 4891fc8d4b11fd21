"""Search space of training settings, searched jointly with the space of networks.

Joint search follows NARS and FBNetV3 (Dai et al., CVPR 2021): which network is best depends on the
training settings, and which settings are best depends on the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hwnas.errors import ConfigError
from hwnas.registry import Plugin
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choice_space import ChoiceSpace
from hwnas.search_spaces.space.choices import Choice, Option

__all__ = ["PLUGINS", "TrainingSpace", "recipe_space"]


class TrainingSpace(ChoiceSpace):
    """Space of training settings; settings outside the space are as in ``[train]``.

    Args:
        settings: Options of each setting, by its name in ``[train]``. A setting with a single
            option is fixed and does not appear in `choices`. A setting without options keeps its
            value of ``[train]``.

    Raises:
        ConfigError: No setting has two options or more, or a setting has an option twice.
    """

    name = "recipe"

    def __init__(self, settings: Mapping[str, Sequence[Option]]) -> None:
        # Choice raises if an option is given twice.
        self.settings = {
            name: Choice(name, tuple(sorted(options)))
            for name, options in settings.items()
            if options
        }
        if not self.choices:
            raise ConfigError(
                "no setting of space.recipe has two options or more; give some, such as "
                "learning_rate = [0.002, 0.01]"
            )

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """Settings that have more than one option."""
        return tuple(c for c in self.settings.values() if len(c.options) > 1)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Options of all settings, by setting name."""
        return {name: list(choice.options) for name, choice in self.settings.items()}

    def values(self, architecture: Architecture) -> dict[str, Option]:
        """Return the value of each setting by its name in ``[train]``, fixed settings included."""
        fixed = {name: choice.options[0] for name, choice in self.settings.items()}
        return {**fixed, **self.check(architecture).as_dict()}


def recipe_space(
    learning_rate: tuple[float, ...] = (1e-3, 3e-3, 1e-2),
    weight_decay: tuple[float, ...] = (0.0, 0.02, 0.1),
    label_smoothing: tuple[float, ...] = (0.0, 0.1),
    shift_pixels: tuple[int, ...] = (0, 1, 2),
    cutout: tuple[float, ...] = (0.0, 0.25),
    flip: tuple[bool, ...] = (),
    epochs: tuple[float, ...] = (),
    batch_size: tuple[int, ...] = (),
    warmup: tuple[float, ...] = (),
) -> TrainingSpace:
    """Return the space of the role ``recipe`` in ``[space] name = ["mobilenet", "recipe"]``.

    Each argument lists the options of the same key of ``[train]``. An empty argument leaves that
    key unchanged.

    Args:
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of AdamW.
        label_smoothing: Share of the target probability that is spread over all classes.
        shift_pixels: Largest shift of images, in pixels.
        cutout: Side of the square that is erased, as a share of the image's side.
        flip: Whether images are mirrored left and right at random.
        epochs: Passes over the training images.
        batch_size: Images per training step.
        warmup: Share of the training in which the learning rate rises.

    Raises:
        ConfigError: No setting has two options or more, or a setting has an option twice.
    """
    return TrainingSpace(
        {
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "label_smoothing": label_smoothing,
            "shift_pixels": shift_pixels,
            "cutout": cutout,
            "flip": flip,
            "epochs": epochs,
            "batch_size": batch_size,
            "warmup": warmup,
        }
    )


PLUGINS = (Plugin("role", "recipe", recipe_space, "Training settings of each candidate"),)
