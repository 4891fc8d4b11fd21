"""Evaluation by network growth: training starts from the weights of a smaller evaluated network."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.atomic import write_json
from hwnas.errors import ArtifactError, ConfigError
from hwnas.hashing import content_hash
from hwnas.identity import Identity, may_reuse
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.engine.devices import working_device
from hwnas.search.engine.remote_files import fetch_folder, fetched, send
from hwnas.search.engine.threads import torch_threads
from hwnas.search.evaluation.converted import scorable
from hwnas.search.evaluation.evaluate import shorter, train_network, with_format
from hwnas.search.evaluation.scoring import Evaluation, Fidelity, merit, score
from hwnas.search.tasks.task import Task
from hwnas.search.training.checkpoint import (
    load_weights,
    save_weights,
    weights_identity,
)
from hwnas.search.training.trainer import NetworkStep, TrainConfig
from hwnas.search_spaces import Architecture, Candidate, SearchSpace
from hwnas.search_spaces.growth import NetworkGrowth

__all__ = ["PLUGINS", "GrowEvaluator", "Lineage", "check_growable"]

_SHARE_OF_TRAINING = 0.25
_SHARE_OF_LEARNING_RATE = 0.2
_SCHEMA = 2
"""Schema number of the results of `GrowEvaluator`; increased when these change."""
_TRIED = 3  # random networks
_STATISTICS_IMAGES = 256  # for batch normalisations in new layers that start as the identity


@dataclass(frozen=True)
class Lineage:
    """Store of the weights of all evaluated networks, one file per network.

    Attributes:
        folder: Folder of the files, which all workers share.
        identity: Inputs of the training. Networks of another identity are ignored until they are
            overwritten by the same architecture of this identity.
    """

    folder: Path
    identity: Identity

    def keep(self, architecture: Architecture, weights: Mapping[str, Tensor], value: float) -> None:
        """Store a network; its files are complete on disk when this returns.

        Args:
            architecture: Architecture of the network.
            weights: State dict of the network.
            value: Score of the network; higher is better.

        Raises:
            StorageError: The folder cannot be written.
        """
        save_weights(self._weights(architecture), dict(weights), self.identity.key)
        path = self.folder / f"{architecture.id}.json"
        write_json(
            path,
            {
                "architecture": architecture.to_json(),
                "value": value,
                "identity": self.identity.key,
            },
        )
        send(path)

    def networks(self) -> dict[Architecture, float]:
        """Return the networks of this identity, with the score of each.

        Raises:
            ArtifactError: A file is damaged.
        """
        found = {}
        fetch_folder(self.folder, "*.json")
        for path in sorted(self.folder.glob("*.json")):
            with _damage_named(path):
                about = json.loads(path.read_text(encoding="utf-8"))
                network, value = Architecture.from_json(about["architecture"]), about["value"]
                if may_reuse(about.get("identity"), self.identity):
                    found[network] = float(value)
        return found

    def weights(self, architecture: Architecture) -> dict[str, Tensor] | None:
        """Return the state dict of a network; None if there is none of this identity.

        Raises:
            ArtifactError: The file is damaged.
        """
        path = self._weights(architecture)
        if fetched(path) and may_reuse(weights_identity(path), self.identity):
            return load_weights(path)
        return None

    def adopt(self) -> None:
        """Record the identity in networks that an older hwnas stored without one.

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
    """Turn an error from reading a file that `Lineage.keep` wrote into an error that names it."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}); remove it") from error


def check_growable(space: SearchSpace) -> None:
    """Raise if the networks of a space cannot grow.

    The smallest network is tried, and a few random ones.

    Raises:
        ConfigError: The networks of the space cannot grow.
    """
    growth, rng = NetworkGrowth(space), random.Random(0)
    tried = [space.smallest(), *(space.sample(rng) for _ in range(_TRIED))]
    if not any(growth.grows(network) for network in tried):
        raise ConfigError(
            f'evaluator "grow": none of {len(tried)} networks of space {space.name!r} can grow '
            'with the same outputs; use another space, or evaluator "train"'
        )


@dataclass(frozen=True)
class GrowEvaluator:
    """Evaluator that grows each candidate from a smaller trained network and trains it briefly.

    After "Efficient Architecture Search by Network Transformation" (Cai et al., AAAI 2018): among
    the evaluated networks that can grow into the candidate, the parent is the one with the fewest
    changes and, among equals, the best score. The grown network gives the same outputs as its
    parent (function-preserving transformation). It is trained for a quarter of the recipe's
    ``[train]`` at a fifth of the learning rate, as in that paper. A candidate without a parent is
    trained in full. The score of a candidate therefore depends on earlier evaluations, and a
    network of many generations has been trained for longer than one of few.

    Attributes:
        space: Search space of the candidates' networks.
        task: Task that gives preprocessing, losses and metrics.
        data: Data set: training images to learn from, validation images to score.
        train: Training settings of a network that does not grow from another.
        folder: Folder for the weights of all evaluated networks, which needs space for all of them.
        seed: Seed of all random draws.
        threads: Number of CPU threads of one evaluation.
        number_format: Format that networks are scored in; see `scorable`.

    Raises:
        ConfigError: Networks of the space cannot grow.
    """

    space: SearchSpace
    task: Task
    data: ImageData
    train: TrainConfig
    folder: Path
    seed: int = 0
    threads: int = 1
    number_format: str = "fp32"

    def __post_init__(self) -> None:
        check_growable(self.space)

    @cached_property
    def growth(self) -> NetworkGrowth:
        """Function-preserving transformations between networks of the space."""
        return NetworkGrowth(self.space)

    @cached_property
    def key(self) -> str:
        """Hash of space, task, data, training settings, seed and number format."""
        return with_format(self._training_key, self.number_format)

    @cached_property
    def _training_key(self) -> str:
        learned = self.space.fingerprint, self.task, self.data.fingerprint
        return content_hash("grow", _SCHEMA, *learned, self.train.identity, self.seed)

    def kept_weights(self, candidate: Candidate) -> dict[str, Tensor] | None:
        """Return the trained weights of a candidate; None if they are not kept.

        Raises:
            ArtifactError: The file is damaged.
        """
        return self.lineage.weights(candidate.network)

    @property
    def lineage(self) -> Lineage:
        """Store of the networks that were trained with the same inputs as this evaluator's."""
        return Lineage(self.folder, Identity.of(evaluator=self._training_key))

    def ancestor(self, architecture: Architecture) -> Architecture | None:
        """Return the network from whose weights a network starts; None if nothing grows to it."""
        own = set(architecture.values)
        others = (item for item in self.lineage.networks().items() if item[0] != architecture)
        nearest = sorted((len(own - set(kept.values)), -value, kept) for kept, value in others)
        able = (kept for *_, kept in nearest if self.growth.can_grow(kept, architecture))
        return next(able, None)

    def start(self, architecture: Architecture) -> tuple[nn.Module, TrainConfig]:
        """Return a network with its initial weights, and its training settings."""
        parent = self.ancestor(architecture)
        weights = None if parent is None else self.lineage.weights(parent)
        seed = self._seed(architecture)
        if parent is None or weights is None:
            torch.manual_seed(seed)
            return self.space.build(architecture), self.train
        rate = self.train.learning_rate * _SHARE_OF_LEARNING_RATE
        config = replace(shorter(self.train, _SHARE_OF_TRAINING), learning_rate=rate)
        return self.growth.grow(parent, weights, architecture, seed, self._inputs(parent)), config

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        """Grow or build, train and score the candidate's network, and keep its weights.

        Raises:
            DivergedError: The training loss is not a number.
            NonFiniteOutput: An output of the network is NaN or infinite; its weights are not kept.
            ArtifactError: The network cannot be converted to the number format.
        """
        with torch_threads(self.threads):
            return self._evaluated(candidate, fidelity)

    def _evaluated(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        architecture = candidate.network
        network, config = self.start(architecture)
        network.to(working_device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
        shape = self.space.input_shape(architecture)
        step = NetworkStep.of(network, self.task, shape, config)
        config = shorter(config, fidelity.share)
        train_network(step, self.data, config, self._seed(architecture))
        scored = replace(fidelity, share=1.0).of(self.data.validation)
        with scorable(network, self.number_format, self.task, self.data.train, shape) as shipped:
            found = score(shipped, self.task, scored, shape, "validation")
        self.lineage.keep(architecture, network.state_dict(), merit(self.task, found))
        return found

    def _seed(self, architecture: Architecture) -> int:
        """Return a network's seed, unlike its parent's so that the order of images differs."""
        return random.Random(f"{self.seed}-{architecture.id}").getrandbits(31)

    def _inputs(self, architecture: Architecture) -> Tensor:
        """Return inputs (N, C, H, W) of a network, from training images without augmentation."""
        count = min(_STATISTICS_IMAGES, len(self.data.train))
        images, _ = self.data.train.take(np.arange(count))
        shape = self.space.input_shape(architecture)
        return self.task.preprocessing.at(*shape[1:])(torch.from_numpy(images))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "growth"}


PLUGINS = (
    Plugin(
        "evaluator",
        "grow",
        GrowEvaluator,
        "Train each candidate from the weights of the network that it grew from",
    ),
)
