"""Configuration of a space of channel ratios, and the models that hwnas ships for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hwnas.errors import ConfigError, HwnasError
from hwnas.plugin import build, resolve
from hwnas.search_spaces.cifar_resnet import resnet20, resnet56
from hwnas.search_spaces.simplenet import simplenet

__all__ = ["MODELS", "ChannelConfig"]


def _simplenet(image_shape: tuple[int, int, int], outputs: int) -> nn.Module:
    space = simplenet(image_shape, outputs, preset="simplenet-310k")
    return space.build(space.largest())


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "resnet20": resnet20,
    "resnet56": resnet56,
    "simplenet-310k": _simplenet,
}


@dataclass(frozen=True)
class ChannelConfig:
    """Complete definition of a `ChannelSpace`.

    Attributes:
        model: One of `MODELS`, or ``"package.module:build"``. It is called with ``options`` and
            with those of ``image_shape`` and ``outputs`` that it accepts.
        ratios: Options for the share of its channels that each group keeps, in (0, 1], increasing.
        divisor: Number that channel counts are rounded to a multiple of.
        image_shape: Height, width and channels.
        outputs: Length of the output vector.
        options: Further arguments of the model, as in a recipe.
    """

    model: str
    ratios: tuple[float, ...] = (0.25, 0.5, 0.75, 1)
    divisor: int = 8
    image_shape: tuple[int, int, int] = (32, 32, 3)
    outputs: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ratio in self.ratios:
            if not 0 < ratio <= 1:  # NaN is refused, too
                raise ConfigError(
                    f"ratios has {ratio}; expected shares of a model's channels in (0, 1]"
                )
        if not self.ratios or list(self.ratios) != sorted(set(self.ratios)):
            raise ConfigError(
                f"ratios is {list(self.ratios)}; expected at least one, increasing, none twice"
            )
        if self.divisor < 1:
            raise ConfigError(f"divisor is {self.divisor}; expected at least 1")
        whole = tuple(1 if ratio == 1 else ratio for ratio in self.ratios)
        object.__setattr__(self, "ratios", whole)

    def make(self) -> nn.Module:
        """Return the model, freshly initialised.

        Raises:
            ConfigError: There is no such model, or it cannot be built.
        """
        factory = resolve("model of space channels", self.model, MODELS)
        given = {"image_shape": self.image_shape, "outputs": self.outputs}
        try:
            model = build("space.options", factory, self.options, **given)
        except HwnasError:
            raise
        except Exception as error:  # user code may raise anything; name the type
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"space.model {self.model!r} cannot be built ({type(error).__name__}: {reason})"
            ) from error
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"space.model {self.model!r} gives a {type(model).__name__}; expected a function "
                "that returns a torch.nn.Module"
            )
        return model

    def sizes(self, channels: int, multiple: int) -> dict[float, int]:
        """Return the number of a group's channels that each ratio keeps.

        Args:
            channels: Number of channels of the group in the whole model.
            multiple: Number that each result has to be a multiple of.

        Returns:
            Numbers of channels by ratio, both increasing. Of ratios that round to the same number,
            only the largest is included.
        """
        step = math.lcm(multiple, self.divisor)
        step = step if step <= channels else multiple
        found: dict[int, float] = {}
        for ratio in self.ratios:
            rounded = max(step, round(channels * ratio / step) * step)
            found[channels if ratio == 1 else min(rounded, channels)] = ratio
        return {ratio: size for size, ratio in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object of all values that distinguish this space from others."""
        return {
            "model": self.model,
            "ratios": list(self.ratios),
            "divisor": self.divisor,
            "image_shape": list(self.image_shape),
            "outputs": self.outputs,
            "options": json.loads(json.dumps(dict(self.options), default=str)),
        }

    @property
    def example_shape(self) -> tuple[int, int, int, int]:
        """Shape (N, C, H, W) of a batch of two images."""
        height, width, channels = self.image_shape
        return 2, channels, height, width
