"""Components that a user could write: a space, an evaluator and a sampling rule."""

from __future__ import annotations

import random

from torch import nn

from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Architecture, Candidate, Choice, SearchSpace


def only_extremes(
    space: SearchSpace, rng: random.Random, random_subnets: int
) -> list[Architecture]:
    return [space.largest(), space.smallest()]


class Dense(SearchSpace):
    """Space of networks with one hidden layer."""

    name = "dense"

    def __init__(self, image_shape: tuple[int, int, int], outputs: int, widest: int = 32) -> None:
        self.image_shape, self.outputs = image_shape, outputs
        self._widths = tuple(range(4, widest + 1, 4))

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Choice("width", self._widths), Choice("activation", ("relu", "tanh")))

    def input_shape(self, architecture: Architecture) -> tuple[int, int, int]:
        height, width, channels = self.image_shape
        return channels, height, width

    def build(self, architecture: Architecture) -> nn.Module:
        values = self.check(architecture).as_dict()
        height, width, channels = self.image_shape
        hidden = int(values["width"])
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(height * width * channels, hidden),
            nn.ReLU() if values["activation"] == "relu" else nn.Tanh(),
            nn.Linear(hidden, self.outputs),
        )


class Wider:
    """Evaluator that scores wider networks higher, without training."""

    key = "wider"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        width = float(candidate.network.as_dict()["width"])
        return Evaluation({"accuracy": width / 100}, {"accuracy": 0.0}, 1, "validation")
