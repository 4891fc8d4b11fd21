"""Base class of all spaces of discrete choices."""

from __future__ import annotations

import hashlib
import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hwnas.errors import ConfigError
from hwnas.search_spaces.space.architecture import Architecture
from hwnas.search_spaces.space.choices import Choice, Option

__all__ = ["ChoiceSpace", "SuggestingTrial"]


class SuggestingTrial(Protocol):
    """Method of an Optuna trial that a space needs."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of the choices."""


class ChoiceSpace(ABC):
    """Set of points that discrete choices describe: networks, training settings, or both.

    A subclass defines `name` and `choices`; sampling, encoding, variation and counting follow from
    them.
    """

    name: str

    @property
    @abstractmethod
    def choices(self) -> tuple[Choice, ...]:
        """Choices of the space, each after the choice that its condition names."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """JSON object that distinguishes this space from others of the same name and choices."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """Name and hash of the space; equal spaces have the same one on every machine."""
        choices = [
            [c.name, c.options, c.when and [c.when.name, c.when.values]] for c in self.choices
        ]
        _check_order(self.name, self.choices)
        text = json.dumps([self.name, choices, self.identity], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    # Architectures

    def architecture(self, values: Mapping[str, Option]) -> Architecture:
        """Return the architecture that has these options.

        Args:
            values: Option of each choice that has an effect. Entries of choices that have no effect
                are dropped, so equal networks are equal architectures.

        Raises:
            ConfigError: A choice is missing or unknown, or an option is not allowed.
        """
        effective: dict[str, Option] = {}
        for choice in self.choices:
            if not self._has_effect(choice, effective):
                continue
            if choice.name not in values:
                raise ConfigError(f"{self.name}: no value for {choice.name}")
            effective[choice.name] = choice.options[choice.index(values[choice.name])]
        unknown = set(values) - {choice.name for choice in self.choices}
        if unknown:
            raise ConfigError(f"{self.name} has no choice {sorted(unknown)[0]!r}")
        return Architecture(self.fingerprint, tuple(effective.items()))

    def check(self, architecture: Architecture) -> Architecture:
        """Return the same architecture, or raise if it is not one of this space.

        Raises:
            ConfigError: The architecture belongs to another space.
        """
        if architecture.space != self.fingerprint:
            raise ConfigError(
                f"architecture {architecture.id} is of space {architecture.space}, not of "
                f"{self.fingerprint}; use the recipe of its search"
            )
        return self.architecture(architecture.as_dict())

    def smallest(self) -> Architecture:
        """Return the architecture with the first option of every choice."""
        return self.architecture({c.name: c.options[0] for c in self.choices})

    def largest(self) -> Architecture:
        """Return the architecture with the last option of every choice."""
        return self.architecture({c.name: c.options[-1] for c in self.choices})

    def sample(self, rng: random.Random) -> Architecture:
        """Return an architecture with every choice drawn uniformly."""
        return self.architecture({c.name: rng.choice(c.options) for c in self.choices})

    def suggest(self, trial: SuggestingTrial) -> Architecture:
        """Return the architecture that an Optuna trial proposes.

        Every choice is suggested, even if it has no effect, because samplers that learn need the
        same search space in every trial.
        """
        return self.architecture(
            {c.name: trial.suggest_categorical(c.name, c.options) for c in self.choices}
        )

    def parameters(self, architecture: Architecture, rng: random.Random) -> dict[str, Option]:
        """Return an option for every choice: the architecture's own if it has one, or a random one.

        A trial with these parameters suggests the architecture.
        """
        drawn = {c.name: rng.choice(c.options) for c in self.choices}
        return {**drawn, **self.check(architecture).as_dict()}

    # Vectors

    def encode(self, architecture: Architecture) -> npt.NDArray[np.int64]:
        """Return the index of each option, of shape (len(choices),).

        The index is 0 for choices that have no effect.
        """
        values = self.check(architecture).as_dict()
        return np.array(
            [c.index(values[c.name]) if c.name in values else 0 for c in self.choices],
            dtype=np.int64,
        )

    def decode(self, vector: npt.ArrayLike) -> Architecture:
        """Return the architecture of a vector; the inverse of `encode`.

        Raises:
            ConfigError: The vector has another shape, or an index is out of range.
        """
        indices = np.asarray(vector)
        if indices.shape != (len(self.choices),):
            raise ConfigError(f"got {indices.shape=}, expected ({len(self.choices)},)")
        values: dict[str, Option] = {}
        for choice, index in zip(self.choices, indices.tolist(), strict=True):
            if not float(index).is_integer() or not 0 <= index < len(choice.options):
                raise ConfigError(
                    f"{choice.name}: index {index} is not in 0..{len(choice.options) - 1}"
                )
            values[choice.name] = choice.options[int(index)]
        return self.architecture(values)

    def canonical(self, codes: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return ``encode(decode(code))`` for many codes at once.

        Args:
            codes: Indices of options, of shape (N, len(choices)).

        Returns:
            Codes of the same shape, with 0 for choices that have no effect; equal rows are equal
            networks.

        Raises:
            ConfigError: The array has another shape, or an index is out of range.
        """
        columns = self._checked(np.asarray(codes)).T.copy()  # each choice is contiguous in memory
        effect: dict[str, npt.NDArray[np.bool_]] = {}
        place = {choice.name: i for i, choice in enumerate(self.choices)}
        for choice, column in zip(self.choices, columns, strict=True):
            if choice.when is None:
                continue
            parent = self.choices[place[choice.when.name]]
            allowed = np.array([option in choice.when.values for option in parent.options])
            active = allowed[columns[place[parent.name]]]
            if parent.name in effect:
                active &= effect[parent.name]
            effect[choice.name] = active
            column *= active
        return np.ascontiguousarray(columns.T)

    # Variation

    def mutate(
        self, architecture: Architecture, rng: random.Random, rate: float | None = None
    ) -> Architecture:
        """Return a different architecture near this one.

        Args:
            architecture: Parent.
            rng: Source of randomness.
            rate: Probability that a choice is redrawn, in (0, 1]. If None, one choice is redrawn on
                average.

        Returns:
            The child; the parent itself only if the space holds no other network.

        Raises:
            ConfigError: The rate is out of range.
        """
        if rate is not None and not 0 < rate <= 1:
            raise ConfigError(f"mutation rate is {rate}; expected a probability in (0, 1]")
        parent = self.check(architecture)
        free = [c for c in self.choices if len(c.options) > 1]
        if self.size() == 1:
            return parent
        rate = 1 / len(free) if rate is None else rate
        while True:
            values = self.parameters(parent, rng)
            for choice in free:
                if rng.random() < rate:
                    values[choice.name] = rng.choice(choice.options)
            child = self.architecture(values)
            if child != parent:
                return child

    def crossover(self, a: Architecture, b: Architecture, rng: random.Random) -> Architecture:
        """Return a child that takes each choice from one of its parents (uniform crossover)."""
        first, second = self.check(a).as_dict(), self.check(b).as_dict()
        values: dict[str, Option] = {}
        for choice in self.choices:
            inherited = [p[choice.name] for p in (first, second) if choice.name in p]
            values[choice.name] = rng.choice(inherited or list(choice.options))
        return self.architecture(values)

    # Size

    def size(self) -> int:
        """Return the number of distinct networks."""
        return math.prod(self._count(c) for c in self.choices if c.when is None)

    def _checked(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        if codes.ndim != 2 or codes.shape[1] != len(self.choices):
            raise ConfigError(f"got {codes.shape=}, expected (N, {len(self.choices)})")
        options = np.array([len(choice.options) for choice in self.choices])
        inside = (codes >= 0) & (codes < options)
        if not np.issubdtype(codes.dtype, np.integer):
            inside &= codes % 1 == 0
        if not inside.all():
            row, column = np.argwhere(~inside)[0]
            raise ConfigError(
                f"{self.choices[column].name}: index {codes[row, column]} of row {row} is not in "
                f"0..{options[column] - 1}"
            )
        return codes.astype(np.int64)

    def _has_effect(self, choice: Choice, effective: Mapping[str, Option]) -> bool:
        when = choice.when
        return when is None or effective.get(when.name) in when.values

    def _count(self, choice: Choice) -> int:
        children = [c for c in self.choices if c.when is not None and c.when.name == choice.name]
        return sum(
            math.prod(self._count(c) for c in children if c.when and option in c.when.values)
            for option in choice.options
        )


def _check_order(space: str, choices: Sequence[Choice]) -> None:
    """Raise unless names are unique and every condition names options of an earlier choice."""
    earlier: dict[str, Choice] = {}
    for choice in choices:
        if choice.name in earlier:
            raise ConfigError(f"{space} has two choices called {choice.name!r}; rename one")
        if choice.when is not None:
            if choice.when.name not in earlier:
                raise ConfigError(
                    f"{space}: {choice.name} depends on {choice.when.name!r}, which is not an "
                    "earlier choice; list it before"
                )
            for option in choice.when.values:
                earlier[choice.when.name].index(option)
        earlier[choice.name] = choice
