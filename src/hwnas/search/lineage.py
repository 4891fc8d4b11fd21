"""Networks that start from the weights of smaller ones which were evaluated before."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from hwnas.atomic import write_json
from hwnas.content import content_hash
from hwnas.errors import ArtifactError, ConfigError
from hwnas.identity import Identity, may_reuse
from hwnas.search.data import ImageData
from hwnas.search.evaluate import Evaluation, Fidelity, recalibrate, score, shorter
from hwnas.search.task import Task
from hwnas.search.threads import torch_threads
from hwnas.search.training.checkpoint import (
    load_weights,
    save_weights,
    weights_identity,
)
from hwnas.search.training.trainer import NetworkStep, TrainConfig, fit
from hwnas.search_spaces import Architecture, Candidate, MobileNetSpace, SearchSpace
from hwnas.search_spaces.mobilenet.growth import can_grow, grow

__all__ = ["GrowEvaluator", "Lineage", "check_growable"]

_SHARE_OF_TRAINING = 0.25
_SHARE_OF_LEARNING_RATE = 0.2
_RECALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class Lineage:
    """The weights of all networks that were evaluated, one file each.

    Attributes:
        folder: Where they lie; workers on one machine, or with a folder in common, share them.
        identity: What they were trained from and how. Networks of another identity lie in the
            folder as if they were not there, until one of this identity replaces them.
    """

    folder: Path
    identity: Identity

    def keep(self, architecture: Architecture, weights: Mapping[str, Tensor], value: float) -> None:
        """Keep a network; it is there, whole, once this returns.

        Args:
            architecture: Of the network.
            weights: Its state dict.
            value: How good it is; more is better.

        Raises:
            StorageError: The folder cannot be written.
        """
        save_weights(self._weights(architecture), dict(weights), self.identity.key)
        write_json(
            self.folder / f"{architecture.id}.json",
            {
                "architecture": architecture.to_json(),
                "value": value,
                "identity": self.identity.key,
            },
        )

    def networks(self) -> dict[Architecture, float]:
        """Return the networks of this identity, and how good each is.

        Raises:
            ArtifactError: A file is damaged.
        """
        found = {}
        for path in sorted(self.folder.glob("*.json")):
            with _damage_named(path):
                about = json.loads(path.read_text(encoding="utf-8"))
                network, value = Architecture.from_json(about["architecture"]), about["value"]
                if may_reuse(about.get("identity"), self.identity):
                    found[network] = float(value)
        return found

    def weights(self, architecture: Architecture) -> dict[str, Tensor] | None:
        """Return the state dict of a network; None where none of this identity is kept.

        Raises:
            ArtifactError: The file is damaged.
        """
        path = self._weights(architecture)
        if path.exists() and may_reuse(weights_identity(path), self.identity):
            return load_weights(path)
        return None

    def adopt(self) -> None:
        """Record the identity in networks of an older hwnas, which have none.

        Raises:
            ArtifactError: A file is damaged.
            StorageError: The folder cannot be written.
        """
        for path in sorted(self.folder.glob("*.json")):
            with _damage_named(path):
                about = json.loads(path.read_text(encoding="utf-8"))
                known = about.get("identity") is not None
            if known:
                continue
            weights = path.with_suffix(".safetensors")
            if weights.exists():
                save_weights(weights, load_weights(weights), self.identity.key)
            write_json(path, {**about, "identity": self.identity.key})

    def _weights(self, architecture: Architecture) -> Path:
        return self.folder / f"{architecture.id}.safetensors"


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Name the file that holds something else than `Lineage.keep` wrote."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); remove it") from error


def check_growable(space: SearchSpace) -> None:
    """Refuse a space whose networks cannot grow.

    Raises:
        ConfigError: It is one.
    """
    if not isinstance(space, MobileNetSpace):
        raise ConfigError(
            f'evaluator "grow": networks of space {space.name!r} cannot grow; use space '
            '"mobilenet", or evaluator "train"'
        )
    if any(stage.operators for stage in space.config.stages):
        raise ConfigError(
            'evaluator "grow": a space mobilenet whose stages have operators exchanges whole '
            'blocks, which grow into no others; use evaluator "train"'
        )


@dataclass(frozen=True)
class GrowEvaluator:
    """Trains each candidate for a short while, starting from what a smaller network has learnt.

    After "Efficient Architecture Search by Network Transformation" (Cai et al., AAAI 2018): a
    candidate starts from the network that it takes the fewest changes to grow from (of these, from
    the best) among those that were evaluated, with the same outputs. It is trained for a quarter of
    the recipe's ``[train]`` at a fifth of the learning rate, as there; a candidate that nothing
    grows to is trained in full. So what it scores depends on what was evaluated before, and a
    network of many generations has been trained for longer than one of few.

    Attributes:
        space: Of the candidates' networks.
        task: Gives preprocessing, losses and metrics.
        data: Training images to learn from, validation images to score.
        train: How a network is trained that does not grow from another.
        folder: Where weights are kept, as large as all networks that are evaluated.
        seed: Of everything random.

    Raises:
        ConfigError: Networks of the space cannot grow.
    """

    space: SearchSpace
    task: Task
    data: ImageData
    train: TrainConfig
    folder: Path
    seed: int = 0

    def __post_init__(self) -> None:
        check_growable(self.space)

    @cached_property
    def key(self) -> str:
        """Hash of space, task, data and training."""
        learned = self.space.fingerprint, self.task, self.data.fingerprint
        return content_hash("grow", *learned, self.train.identity, self.seed)

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return what a candidate was trained to, if that is kept; None if it is not.

        Raises:
            ArtifactError: The file is damaged.
        """
        return self.lineage.weights(candidate.network)

    @property
    def lineage(self) -> Lineage:
        """All networks that were evaluated with what this evaluator depends on."""
        return Lineage(self.folder, Identity.of(evaluator=self.key))

    def ancestor(self, architecture: Architecture) -> Architecture | None:
        """The network whose weights this one starts from."""
        space, own = self._space, set(architecture.values)
        smaller = [
            (len(own - set(kept.values)), -value, kept)
            for kept, value in self.lineage.networks().items()
            if kept != architecture and can_grow(space, kept, architecture)
        ]
        return min(smaller)[2] if smaller else None

    def start(self, architecture: Architecture) -> tuple[nn.Module, TrainConfig]:
        """A network as it is before it is trained for itself, and how it will be."""
        parent = self.ancestor(architecture)
        weights = None if parent is None else self.lineage.weights(parent)
        seed = self._seed(architecture)
        if parent is None or weights is None:
            torch.manual_seed(seed)
            return self.space.build(architecture), self.train
        rate = self.train.learning_rate * _SHARE_OF_LEARNING_RATE
        config = replace(shorter(self.train, _SHARE_OF_TRAINING), learning_rate=rate)
        return grow(self._space, parent, weights, architecture, seed), config

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Grow or build, train and score the candidate's network, and keep its weights.

        Raises:
            DivergedError: Its training loss is not a number.
            NonFiniteOutput: It outputs something that is no finite number; nothing grows from it.
        """
        with torch_threads(1):
            return self._evaluated(candidate, fidelity)

    def _evaluated(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        architecture = candidate.network
        network, config = self.start(architecture)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        shape = self.space.input_shape(architecture)
        step = NetworkStep.of(network, self.task, shape, config)
        config = shorter(config, fidelity.share)
        fit(network, step, self.data.train, config, self._seed(architecture))
        # So few steps leave running statistics behind.
        recalibrate(network, self.task, self.data.train.first(_RECALIBRATION_IMAGES), shape)
        images = replace(fidelity, share=1.0).of(self.data.validation)
        found = score(network, self.task, images, shape, "validation")
        metric = self.task.metrics[0]
        value = found.values[metric.name]
        good = value if metric.direction == "maximize" else -value
        self.lineage.keep(architecture, network.state_dict(), good)
        return found

    def _seed(self, architecture: Architecture) -> int:
        """Not that of its ancestor: a child sees the images in another order."""
        return random.Random(f"{self.seed}-{architecture.id}").getrandbits(31)

    @property
    def _space(self) -> MobileNetSpace:
        assert isinstance(self.space, MobileNetSpace)
        return self.space
