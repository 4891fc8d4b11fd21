"""Search strategies that learn a distribution over networks while the supernet is trained.

The choices among operators with weights of their own get gradients through gates, which differ
between strategies. All other choices (depths, widths, kernels) are drawn, and learned by policy
gradients: REINFORCE (Williams, Machine Learning 1992) with a moving average as the baseline.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hwnas.errors import ConfigError
from hwnas.registry import Plugin
from hwnas.search.strategies.additive_cost import AdditiveCost
from hwnas.search.strategies.distribution import ArchitectureDistribution
from hwnas.search.tasks.task import Task
from hwnas.search.training.batch import Batch
from hwnas.search.training.config import TrainConfig
from hwnas.search.training.schedule import Schedule
from hwnas.search.training.steps import StepContext
from hwnas.search_spaces import Architecture, SearchSpace, Supernet
from hwnas.search_spaces.layers.candidate_operators import CandidateOperators
from hwnas.search_spaces.layers.quantisers import quantisation_noise
from hwnas.search_spaces.space.choices import Option
from hwnas.search_spaces.supernet.block_space import BlockSpace
from hwnas.search_spaces.supernet.blueprint import blueprint
from hwnas.search_spaces.supernet.relaxed import RelaxedSpace

__all__ = ["Strategy", "StrategyPlugin", "StrategyStep", "Update"]

_LEAST_PROBABILITY = 1e-12  # the gradient of the entropy is infinite at 0
_COST_LIMITS = 0.5, 1.0, 2.0
_COST_WEIGHTS = 1e-6, 1e3  # range of the learned weights of the cost
_RISE, _DAMPING = 6.0, 6.0  # from simulations, for losses of any magnitude in 300 to 4,000 steps

Gates = Callable[[str], Callable[[Tensor, Mapping[str, torch.nn.Module]], Tensor]]
"""Function from the name of a choice to the gate of the places that it decides."""


@dataclass(frozen=True)
class Update:
    """Update of a distribution from one batch.

    Attributes:
        loss: Loss, a scalar without a gradient.
        drawn: Options of the choices that were drawn from the distribution, by name; they are
            learned from the loss by policy gradients.
        gradient: Gradient of the loss by the logits of all other choices, (C, O); zero if None.
        touched: Options of these choices that may change, (C, O) bool; all if None.
        edges: Gradient by the logits of the edges, (C,); None if they are not learned.
    """

    loss: Tensor
    drawn: Mapping[str, Option]
    gradient: Tensor | None = None
    touched: Tensor | None = None
    edges: Tensor | None = None


@dataclass(frozen=True)
class Strategy(ABC):
    """Base of the search strategies: how a distribution over networks gets its gradient.

    Attributes:
        epochs: Passes over the images that the weights are trained on.
        minutes: Longest duration of this training, in minutes; no limit if None.
        cost_limits: Largest expected relative cost of each distribution, above 0. The relative cost
            is 1 if all options are equally probable; it is the mean over the objectives that are
            costs. The weight of the cost against the loss is learned: it grows while a distribution
            is above its limit, and shrinks below (LightNAS, Luo et al., "You Only Search Once",
            DAC 2022). None for 0.5, 1 and 2, unless there are ``cost_weights``.
        cost_weights: In place of limits, fixed weights of the relative cost against the loss; there
            is a distribution for each.
        learning_rate: Learning rate of the distributions.
        held_out: Share of the training images that the distributions learn from; the weights learn
            from the others.
        warmup: Share of the training in which only the weights are trained.
        entropy: Weight of the entropy of the probabilities, averaged over the choices, against the
            loss at the end of the training; it rises linearly from 0 at the end of the warm-up. So
            the distributions settle on one option each (QuantNAS, Shvetsov et al., IEEE Access
            2024, section III).
        decay: Decay of the moving average of losses that policy gradients take as the baseline, in
            [0, 1).
    """

    epochs: float = 20.0
    minutes: float | None = None
    cost_limits: tuple[float, ...] | None = None
    cost_weights: tuple[float, ...] | None = None
    learning_rate: float = 0.01
    held_out: float = 0.3
    warmup: float = 0.1
    entropy: float = 0.0
    decay: float = 0.95

    def __post_init__(self) -> None:
        for name in ("cost_limits", "cost_weights"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(getattr(self, name)))
        limits, weights = self.cost_limits, self.cost_weights
        if limits is not None and weights is not None:
            raise ConfigError("cost_limits and cost_weights exclude each other; give one of them")
        if limits is not None and not (limits and all(0 < each < math.inf for each in limits)):
            raise ConfigError(f"cost_limits is {list(limits)}; expected numbers above 0")
        if weights is not None and not (weights and all(0 <= each < math.inf for each in weights)):
            raise ConfigError(f"cost_weights is {list(weights)}; expected numbers of at least 0")
        for name in ("epochs", "minutes", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; expected a number above 0")
        if not 0 <= self.entropy < math.inf:
            raise ConfigError(f"entropy is {self.entropy}; expected at least 0")
        if not 0 <= self.decay < 1:
            raise ConfigError(f"decay is {self.decay}; expected at least 0 and below 1")
        if not 0 < self.held_out < 1 or not 0 <= self.warmup < 1:
            raise ConfigError(
                f"held_out is {self.held_out} and warmup {self.warmup}; expected shares, the first "
                "above 0"
            )

    @property
    def limits(self) -> tuple[float, ...] | None:
        """Largest expected relative cost of each distribution; None if the weights are fixed."""
        return None if self.cost_weights is not None else self.cost_limits or _COST_LIMITS

    @property
    def directions(self) -> int:
        """Number of distributions."""
        return len(self.cost_weights or self.limits or ())

    trains_networks = True
    """Whether the weights of whole networks are trained, so that a supernet can score them."""

    def check(self, space: SearchSpace) -> None:
        """Raise if a space does not suit the strategy.

        Raises:
            ConfigError: It does not.
        """
        relaxed = self.relaxed(space)
        if relaxed is not None:
            with blueprint():
                relaxed.shared_network()  # raises if the operators do not fit

    def training(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of the supernet's training with the strategy's own length."""
        return replace(config, epochs=self.epochs, budget_minutes=self.minutes)

    def held_out_images(self, images: int, batch_size: int) -> int:
        """Return the number of training images that the distributions learn from.

        Raises:
            ConfigError: They, or the other images, are too few for a batch.
        """
        count = round(self.held_out * images)
        if min(count, images - count) < batch_size:
            raise ConfigError(
                f"train.batch_size is {batch_size}, but of {images} training images a strategy "
                f"learns its distributions from {count} and the weights from {images - count}; "
                "lower the batch size, or change held_out in search.strategy_options"
            )
        return count

    def relaxed(self, space: SearchSpace) -> RelaxedSpace | None:
        """Return the space of the networks with all operators; None if the strategy uses none."""
        if not isinstance(space, BlockSpace):
            raise ConfigError(
                f"space {space.name!r} has no choice among operators with weights of their own; "
                'use space nasbench201 or mobilenet with operator_weights = "own", or '
                'search.strategy = "reinforce"'
            )
        return RelaxedSpace(space)

    @abstractmethod
    def update(
        self, work: StrategyStep, batch: Batch, moment: StepContext, direction: int
    ) -> Update:
        """Return the update of the distribution of a direction from held-out images."""

    def trained(
        self, work: StrategyStep, moment: StepContext, direction: int
    ) -> Callable[[Batch], Tensor]:
        """Return the function from images to the loss that the weights are trained by.

        It is the loss of a network that is drawn from the distribution of a direction.
        """
        network = work.distribution.sample(direction, moment.rng)
        return lambda part: work.loss(network, part, moment)


@dataclass(frozen=True)
class StrategyPlugin(Plugin[Callable[..., Strategy]]):
    """Descriptor of a search strategy."""


@dataclass(frozen=True)
class StrategyStep:
    """Training step of the weights, then an update of a distribution.

    Attributes:
        supernet: Supernet whose weights are trained; ``distribution`` is one of its children, so
            that checkpoints contain it.
        distribution: Distributions, one for each of the strategy's cost limits or weights.
        strategy: Strategy that trains both.
        task: Task that gives preprocessing and losses.
        held_out: Schedule of the images that the distributions learn from.
        cost: Expected cost; None if no objective is a cost.
        noise: Whether networks are trained with noise in place of rounding.
    """

    supernet: Supernet
    distribution: ArchitectureDistribution
    strategy: Strategy
    task: Task
    held_out: Schedule
    cost: AdditiveCost | None = None
    noise: bool = False

    def __call__(self, batch: Batch, moment: StepContext) -> tuple[float, float]:
        """Compute gradients of the weights and update a distribution; return the loss twice."""
        direction = moment.step % self.strategy.directions
        loss_of, loss = self.strategy.trained(self, moment, direction), 0.0
        for part in batch.parts(moment.parts):
            of_part = loss_of(part)
            (part.weight * of_part).backward()  # type: ignore[no-untyped-call]
            loss += part.weight * of_part.item()
        if moment.share >= self.strategy.warmup:
            self._learn(batch.images.device, moment, direction)
        return loss, loss

    def loss(self, network: Architecture, part: Batch, moment: StepContext) -> Tensor:
        """Return the loss of a network of the supernet."""
        self.supernet.activate(network)
        return self._loss_of_active(self.supernet, network, part, moment)

    def _loss_of_active(
        self, supernet: Supernet, network: Architecture, part: Batch, moment: StepContext
    ) -> Tensor:
        """Return the loss of the active network of this supernet, or of the relaxed one."""
        shape = supernet.space.input_shape(network)
        with moment.forward_passes(part.images), quantisation_noise(self.noise):
            outputs: Tensor = supernet(moment.inputs(self.task, part.images, shape))
        return part.loss(self.task, outputs.float())

    def relaxed_loss(
        self, part: Batch, moment: StepContext, direction: int, gates: Gates
    ) -> tuple[Tensor, Mapping[str, Option]]:
        """Return the loss of the network with all operators, combined by gates.

        Choices that do not select an operator are drawn from the distribution.

        Args:
            part: Images and targets.
            moment: Context of the step.
            direction: Index of the distribution.
            gates: Gates of the operators.

        Returns:
            The loss, and the options that were drawn.
        """
        relaxed = self.relaxed
        space = relaxed.space
        assert isinstance(space, RelaxedSpace)
        rows = self.distribution.probabilities[direction].tolist()
        drawn = {
            choice.name: moment.rng.choices(choice.options, row[: len(choice.options)])[0]
            for choice, row in zip(self.supernet.space.choices, rows, strict=True)
            if choice.name not in space.deciding
        }
        network = space.architecture(drawn)
        relaxed.activate(network)
        modules: list[CandidateOperators] = []
        try:
            for module, choice in space.gated(relaxed.active):
                module.gate = gates(choice)
                modules.append(module)
            loss = self._loss_of_active(relaxed, network, part, moment)
        finally:
            for module in modules:
                module.gate = None
        return loss, network.as_dict()

    @cached_property
    def relaxed(self) -> Supernet:
        """Supernet of the networks with all operators, with the same weights."""
        space = self.strategy.relaxed(self.supernet.space)
        assert space is not None
        return Supernet(space, self.supernet.shared).train()

    @cached_property
    def index_of(self) -> Mapping[str, int]:
        """Index of each choice of the space, by its name."""
        return {choice.name: i for i, choice in enumerate(self.supernet.space.choices)}

    def _learn(self, device: torch.device, moment: StepContext, direction: int) -> None:
        """Update the distribution of a direction from a batch of held-out images."""
        workers, strategy, distribution = moment.workers, self.strategy, self.distribution
        batch = self.held_out.batch(moment.step, workers.rank, workers.world, moment.resolution)
        gradient = torch.zeros(distribution.exists.shape, device=device)
        edges = torch.zeros(len(gradient), device=device)
        touched: Tensor | None = None
        for part in batch.to(device).parts(moment.parts):
            found = strategy.update(self, part, moment, direction)
            learned = self._policy_gradient(found, direction)
            if found.gradient is not None:
                learned += found.gradient
            if found.touched is not None:
                drawn = [choice.name in found.drawn for choice in self.supernet.space.choices]
                free = torch.tensor(drawn, device=device)[:, None] & distribution.exists
                touched = (
                    found.touched | free if touched is None else touched | found.touched | free
                )
            if found.edges is not None:
                edges += part.weight * found.edges
            gradient += part.weight * learned
        parts = gradient, edges, distribution.baselines
        together = torch.cat([each.flatten() for each in parts])
        workers.agree()
        workers.average(together)
        for each, mean in zip(
            parts, torch.split(together, [t.numel() for t in parts]), strict=True
        ):
            each.copy_(mean.view_as(each))
        gradient += self._own_gradient(direction, moment.share, self._cost_weight(direction))
        distribution.descend(direction, gradient, strategy.learning_rate, touched)
        if bool(edges.any()):
            distribution.edges.descend(direction, edges, strategy.learning_rate)

    def _policy_gradient(self, found: Update, direction: int) -> Tensor:
        """Return the gradient of the expected loss by the logits of the drawn choices, (C, O)."""
        distribution, baselines = self.distribution, self.distribution.baselines
        loss = found.loss.detach()
        known = loss if bool(baselines[direction].isnan()) else baselines[direction].clone()
        baselines[direction] = self.strategy.decay * known + (1 - self.strategy.decay) * loss
        gradient = torch.zeros(distribution.exists.shape, device=loss.device)
        for index, choice in enumerate(self.supernet.space.choices):
            if choice.name in found.drawn:
                gradient[index] = -distribution.probabilities[direction, index]
                gradient[index, choice.index(found.drawn[choice.name])] += 1.0
        return gradient * (loss - known)

    def _own_gradient(self, direction: int, share: float, weight: float) -> Tensor:
        """Return the gradient of what needs no network: the expected cost, and the entropy.

        Args:
            direction: Index of the distribution.
            share: Share of the training that is done.
            weight: Weight of the relative cost; 0 if there is none.
        """
        strategy = self.strategy
        entropy = strategy.entropy * (share - strategy.warmup) / (1 - strategy.warmup)
        logits = self.distribution.logits.value[direction].detach().clone().requires_grad_()
        if not weight and not entropy:
            return torch.zeros_like(logits)
        probabilities = self.distribution.of_logits(logits)
        logarithms = probabilities.clamp_min(_LEAST_PROBABILITY).log()
        loss = -entropy * (probabilities * logarithms).sum(-1).mean()
        if self.cost is not None and weight:
            loss = loss + weight * self.cost.relative(probabilities)
        (found,) = torch.autograd.grad(loss, logits)
        return found

    def _cost_weight(self, direction: int) -> float:
        """Return the weight of the relative cost, after learning it if there is a limit.

        The weight is multiplied by the exponential of the relative violation of the limit (dual
        ascent), since nobody knows its magnitude. What is returned also follows the violation of
        the moment, which damps oscillations.
        """
        strategy, weights = self.strategy, self.distribution.cost_weights
        if self.cost is None:
            return 0.0
        if strategy.cost_weights is not None:
            return strategy.cost_weights[direction]
        assert strategy.limits is not None
        expected = float(self.cost.relative(self.distribution.probabilities[direction]))
        violation = max(-1.0, min(1.0, expected / strategy.limits[direction] - 1))
        rate = _RISE * strategy.learning_rate
        risen = float(weights[direction]) * math.exp(rate * violation)
        weights[direction] = max(_COST_WEIGHTS[0], min(_COST_WEIGHTS[1], risen))
        return float(weights[direction]) * math.exp(_DAMPING * violation)
