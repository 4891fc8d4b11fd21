"""How a network is trained, as a space of choices beside that of the networks.

Searched together as in NARS and FBNetV3 (Dai et al., CVPR 2021): which network is best depends on
how it is trained, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hwnas.errors import ConfigError
from hwnas.search_spaces.architecture import Architecture
from hwnas.search_spaces.choice_space import ChoiceSpace
from hwnas.search_spaces.choices import Choice, Option

__all__ = ["RecipeSpace", "recipe_space"]


class RecipeSpace(ChoiceSpace):
    """Recipes that differ in some settings of a training; all others are as ``[train]`` says.

    Args:
        settings: The options of each, by its name in ``[train]``. What has a single option is fixed
            and does not appear in `choices`; what has none is as ``[train]`` says.

    Raises:
        ConfigError: No setting has two options or more, or one has an option twice.
    """

    name = "recipe"

    def __init__(self, settings: Mapping[str, Sequence[Option]]) -> None:
        # Choice refuses what is there twice.
        self.settings = {
            name: Choice(name, tuple(sorted(options)))
            for name, options in settings.items()
            if options
        }
        if not self.choices:
            raise ConfigError(
                "the recipes of space.recipe are all the same; give a setting two options or more, "
                "such as learning_rate = [0.002, 0.01]"
            )

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The settings that differ."""
        return tuple(c for c in self.settings.values() if len(c.options) > 1)

    @property
    def identity(self) -> Mapping[str, Any]:
        """All options."""
        return {name: list(choice.options) for name, choice in self.settings.items()}

    def values(self, architecture: Architecture) -> dict[str, Option]:
        """What a recipe sets, by names of ``[train]``, fixed settings included."""
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
) -> RecipeSpace:
    """The role ``recipe`` of a recipe's ``[space] name = ["mobilenet", "recipe"]``.

    Each argument lists the options of that key of ``[train]``; none leaves it as it is there.

    Args:
        learning_rate: At its peak.
        weight_decay: Of AdamW.
        label_smoothing: Share of the target probability that is spread over all classes.
        shift_pixels: By how much images are shifted at most.
        cutout: Side of the square that is erased, as a share of the image's.
        flip: Whether images are mirrored left and right at random.
        epochs: Passes over the training images.
        batch_size: Images of a step.
        warmup: Share of the training in which the learning rate rises.

    Raises:
        ConfigError: No setting has two options or more, or one has an option twice.
    """
    return RecipeSpace(
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
