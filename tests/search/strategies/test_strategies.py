"""The conformance suite of search strategies. A new strategy gets all checks."""

import pickle
import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from hwnas.deploy.io import Preprocessing
from hwnas.errors import ConfigError
from hwnas.search import Classification
from hwnas.search.data.split import Split
from hwnas.search.strategies import STRATEGIES, AdditiveCost, Strategy, make_strategy
from hwnas.search.strategies.distribution import ArchitectureDistribution
from hwnas.search.strategies.learning import DistributionLearning, read_distributions
from hwnas.search.strategies.pc_darts import PCDarts
from hwnas.search.strategies.proxyless import Proxyless
from hwnas.search.strategies.strategy import StrategyStep, Update
from hwnas.search.training import TrainConfig, TrainingPoint, load_weights
from hwnas.search.training.batch import Batch
from hwnas.search.training.checkpoint import save_weights
from hwnas.search.training.schedule import Schedule
from hwnas.search.training.steps import StepContext
from hwnas.search.training.trainer import fit
from hwnas.search_spaces import (
    MobileNetConfig,
    MobileNetSpace,
    SearchSpace,
    Stage,
    nasbench201,
    vit,
)
from hwnas.search_spaces.supernet.block_space import BlockSpace

CELLS = nasbench201((8, 8, 1), 2, channels=4, cells=1, operator_weights="own")
BLOCKS = MobileNetSpace(
    MobileNetConfig(
        stages=(
            Stage(8, 1, (1, 2), operators=("skip", "k3_e1", "k3_e2")),
            Stage(8, 2, (1,), (3, 5), (2, 3)),
        ),
        resolution=(8,),
        width=(0.5, 1),
        in_channels=1,
        outputs=2,
        stem_channels=8,
        stem_stride=1,
        head_channels=16,
        feature_channels=0,
        operator_weights="own",
    )
)
TASK = Classification(2, Preprocessing(8, 8, 1, (0.5,), (0.3,)))
CONFIG = TrainConfig(epochs=2, batch_size=8, learning_rate=0.01, shift_pixels=0, workers=0)
EVERY = pytest.mark.parametrize("name", list(STRATEGIES))


def split_of(count: int = 64) -> Split:
    """Return images of two classes: dark and bright ones."""
    rng = np.random.default_rng(0)
    targets = np.arange(count) % 2
    images = rng.integers(0, 100, (count, 8, 8, 1)) + 100 * targets[:, None, None, None]
    return Split(images.astype(np.uint8), targets, np.arange(count))


def cost_of(space: SearchSpace) -> AdditiveCost:
    return AdditiveCost.fit(space, lambda codes: space.counted(codes)["macs"].astype(float))


def space_for(strategy: Strategy) -> BlockSpace:
    return CELLS if isinstance(strategy, PCDarts) else BLOCKS


def step_of(strategy: Strategy, space: SearchSpace, seed: int = 0) -> tuple[StrategyStep, Split]:
    torch.manual_seed(seed)
    learning = DistributionLearning(strategy, cost_of(space))
    return learning.begin(space.supernet(), TASK, split_of(), CONFIG, seed)


def taken(step: StrategyStep, split: Split, index: int = 0) -> list[str]:
    """Make one step, and return the names of the weights that got gradients."""
    step.supernet.train()
    step.supernet.zero_grad()
    batch = Schedule(CONFIG, split, 0).batch(index)
    moment = StepContext(random.Random(index), index, share=0.5)
    step(batch, moment)
    named = step.supernet.shared.named_parameters()
    return [name for name, weight in named if weight.grad is not None]


def after(strategy: Strategy, space: SearchSpace, steps: int) -> StrategyStep:
    """Return the step of a strategy after some steps."""
    step, split = step_of(strategy, space)
    for index in range(steps):
        taken(step, split, index)
    return step


@EVERY
def test_step_learns_weights_and_one_distribution(name: str) -> None:
    strategy = make_strategy(name, {"cost_weights": [0.0, 1.0], "warmup": 0.0})
    step, split = step_of(strategy, space_for(strategy))
    before = step.distribution.probabilities.clone()
    assert taken(step, split, 1)
    after = step.distribution.probabilities
    torch.testing.assert_close(after[0], before[0])
    assert not torch.equal(after[1], before[1])
    assert not any(weight.grad is not None for weight in step.distribution.parameters())


@EVERY
def test_step_trains_only_the_weights_of_drawn_operators(name: str) -> None:
    strategy = make_strategy(name, {"cost_weights": [0.0]})
    space = space_for(strategy)
    step, split = step_of(strategy, space)
    whole = [n for n, _ in step.supernet.shared.named_parameters()]
    if strategy.trains_networks:
        network = step.distribution.sample(0, random.Random(0))
        used = [n for n, _ in space.build(network).named_parameters()]
        assert len(used) < len(whole)
        assert set(taken(step, split, 0)) == set(used)
    else:
        assert set(taken(step, split, 0)) == set(whole)


@EVERY
def test_warm_up_leaves_the_distributions_alone(name: str) -> None:
    strategy = make_strategy(name, {"warmup": 0.9})
    step, split = step_of(strategy, space_for(strategy))
    before = step.distribution.probabilities.clone()
    taken(step, split)
    torch.testing.assert_close(step.distribution.probabilities, before)


@EVERY
def test_distributions_of_dear_costs_prefer_cheap_networks(name: str) -> None:
    strategy = make_strategy(
        name, {"cost_weights": [0.0, 50.0], "warmup": 0.0, "learning_rate": 0.1}
    )
    space = space_for(strategy)
    step = after(strategy, space, 40)
    cost = cost_of(space)
    free, dear = (float(cost(row)) for row in step.distribution.probabilities)
    assert dear < 0.8 * free
    macs = [space.workload(step.distribution.most_probable(k)).macs for k in (0, 1)]
    assert macs[1] < macs[0] or macs[1] == space.workload(space.smallest()).macs


@EVERY
def test_expected_costs_fall_to_their_limits(name: str) -> None:
    strategy = make_strategy(
        name, {"cost_limits": [0.7, 100.0], "warmup": 0.0, "learning_rate": 0.1}
    )
    space = space_for(strategy)
    step = after(strategy, space, 80)
    cost = cost_of(space)
    limited, free = (float(cost.relative(row)) for row in step.distribution.probabilities)
    assert 0.5 < limited < 0.8
    assert free > limited
    weights = step.distribution.cost_weights
    assert weights[0] > 100 * weights[1]


@dataclass(frozen=True)
class LikesDearOptions(Strategy):
    """Strategy whose loss falls with the relative cost, by a factor."""

    gain: float = 1.0

    def relaxed(self, space: SearchSpace) -> None:
        """Return nothing: all choices are learned from known losses."""

    def update(
        self, work: StrategyStep, batch: Batch, moment: StepContext, direction: int
    ) -> Update:
        """See `Strategy.update`."""
        assert work.cost is not None
        logits = work.distribution.logits.value[direction].clone().requires_grad_()
        loss = -self.gain * work.cost.relative(work.distribution.of_logits(logits))
        (gradient,) = torch.autograd.grad(loss, logits)
        return Update(loss.detach(), {}, gradient)


@pytest.mark.parametrize("gain", [0.003, 0.1, 3.0])
def test_limits_on_the_cost_hold_for_losses_of_any_magnitude(gain: float) -> None:
    strategy = LikesDearOptions(cost_limits=(0.8, 1.0), warmup=0.0, learning_rate=0.03, gain=gain)
    step = after(strategy, CELLS, 400)
    cost = cost_of(CELLS)
    for limit, row in zip((0.8, 1.0), step.distribution.probabilities, strict=True):
        assert float(cost.relative(row)) == pytest.approx(limit, rel=0.1)


@EVERY
def test_entropy_weight_makes_distributions_settle(name: str) -> None:
    left = []
    for entropy in (0.0, 50.0):
        options = {"cost_weights": [0.0], "warmup": 0.0, "learning_rate": 0.1, "entropy": entropy}
        strategy = make_strategy(name, options)
        step = after(strategy, space_for(strategy), 40)
        left.append(torch.special.entr(step.distribution.probabilities).sum(-1).mean().item())
    assert left[1] < 0.7 * left[0]


@EVERY
def test_training_resumes_exactly(name: str, tmp_path: Path) -> None:
    """A training that is killed and resumed gives the same weights and distributions."""
    strategy = make_strategy(name, {"warmup": 0.0})
    config = replace(CONFIG, epochs=3, checkpoint_seconds=1e-9)

    def trained(folder: Path, steps: int | None = None) -> Path:
        def on_row(row: TrainingPoint) -> None:
            if row.step + 1 == steps:
                raise KeyboardInterrupt

        torch.manual_seed(0)
        learning = DistributionLearning(strategy, cost_of(space_for(strategy)))
        supernet = space_for(strategy).supernet()
        step, split = learning.begin(supernet, TASK, split_of(), config, 0)
        checkpoint = folder / "checkpoint.safetensors"
        fit(supernet, step, split, config, 0, checkpoint=checkpoint, run="run", on_row=on_row)
        learning.save(supernet, folder)
        save_weights(folder / "weights.safetensors", supernet.shared.state_dict())
        return folder

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    trained(whole)
    with pytest.raises(KeyboardInterrupt):
        trained(cut, steps=7)
    trained(cut)
    ours, theirs = (load_weights(each / "weights.safetensors") for each in (cut, whole))
    for key, tensor in theirs.items():
        torch.testing.assert_close(ours[key], tensor, rtol=0, atol=0)
    assert read_distributions(cut) == read_distributions(whole)


def saved_bytes(strategy: Strategy, space: SearchSpace) -> int:
    """Return the bytes that the pass for a distribution keeps for its backward pass."""
    step, split = step_of(strategy, space)
    step.supernet.train()
    held: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    own = {t.untyped_storage().data_ptr() for t in step.supernet.state_dict().values()}
    batch = Schedule(CONFIG, split, 0).batch(0)
    moment = StepContext(random.Random(0), 0, share=0.5)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        strategy.update(step, batch, moment, 0)
    return sum(size for place, size in held.items() if place not in own)


def with_operators(count: int) -> BlockSpace:
    """Return a space whose blocks have some operators of the same size."""
    names = [f"k{k}_e4" for k in (3, 5, 7, 9, 11, 13, 15, 17)][:count]
    stage = Stage(16, 1, (4,), operators=tuple(names))
    return MobileNetSpace(replace(BLOCKS.config, stages=(stage,), width=(1.0,), resolution=(16,)))


def test_memory_of_proxyless_does_not_grow_with_the_operators() -> None:
    strategy = make_strategy("proxyless", {})
    few, many = (saved_bytes(strategy, with_operators(n)) for n in (2, 8))
    assert many == pytest.approx(few, rel=0.1)


def test_partial_channels_save_memory_k_fold() -> None:
    """The activations of the operators fall by the divisor; those of the other layers stay."""
    space = nasbench201((16, 16, 1), 2, channels=16, cells=2, operator_weights="own")
    whole, half, quarter = (
        saved_bytes(PCDarts(divisor=k, edge_normalisation=False), space) for k in (1, 2, 4)
    )
    assert whole > 1.6 * half > 1.6 * 1.5 * quarter


def test_proxyless_moves_two_operators_of_a_choice_by_opposite_amounts() -> None:
    strategy = Proxyless(cost_weights=(0.0,))
    step, split = step_of(strategy, BLOCKS)
    batch = Schedule(CONFIG, split, 0).batch(0)
    for seed in range(5):
        context = StepContext(random.Random(seed), seed, share=0.5)
        update = strategy.update(step, batch, context, 0)
        assert update.gradient is not None
        assert update.touched is not None
        assert not update.gradient[~update.touched].any()
        sums = update.gradient.sum(-1)
        torch.testing.assert_close(sums, torch.zeros(len(sums)), atol=1e-6, rtol=0)
        assert set(update.touched.sum(-1).tolist()) <= {0, 2}


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("gdas", {"temperature": [1.0]}, "temperature"),
        ("gdas", {"temperature": [1.0, 0.0]}, "temperature"),
        ("pc-darts", {"divisor": 0}, "divisor"),
        ("reinforce", {"decay": 1.0}, "decay"),
        ("proxyless", {"epochs": 0}, "epochs"),
        ("gdas", {"entropy": -1.0}, "entropy"),
        ("proxyless", {"cost_weights": []}, "cost_weights"),
        ("proxyless", {"cost_weights": [-1.0]}, "cost_weights"),
        ("proxyless", {"cost_limits": []}, "cost_limits"),
        ("gdas", {"cost_limits": [1.0, 0.0]}, r"cost_limits is \[1.0, 0.0\]; .* above 0"),
        ("gdas", {"cost_limits": [1.0], "cost_weights": [1.0]}, "exclude each other"),
        ("proxyless", {"held_out": 1.0}, "held_out"),
        ("proxyless", {"momentum": 1.0}, "momentum"),
        ("darts", {}, "darts"),
    ],
)
def test_make_strategy_refuses_wrong_options(
    name: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make_strategy(name, options)


@pytest.mark.parametrize(
    ("name", "options", "space", "told"),
    [
        ("gdas", {}, nasbench201((8, 8, 1), 2, channels=4, cells=1), "operator_weights"),
        ("proxyless", {}, vit((8, 8, 1), 10), "operators"),
        ("pc-darts", {}, BLOCKS, "part of the channels"),
        ("pc-darts", {"divisor": 3}, CELLS, "equal parts"),
    ],
)
def test_check_refuses_spaces_that_do_not_suit(
    name: str, options: dict[str, object], space: SearchSpace, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make_strategy(name, options).check(space)


def test_begin_refuses_too_few_images() -> None:
    learning = DistributionLearning(make_strategy("reinforce", {}))
    with pytest.raises(ConfigError, match="held_out"):
        learning.begin(BLOCKS.supernet(), TASK, split_of(16), CONFIG, 0)


def test_distributions_survive_a_pickle_of_the_learning() -> None:
    """Training workers receive the strategy by pickle."""
    learning = DistributionLearning(make_strategy("gdas", {}), cost_of(BLOCKS))
    again = pickle.loads(pickle.dumps(learning))
    assert again.strategy == learning.strategy
    rows = ArchitectureDistribution(BLOCKS, 1).probabilities[0]
    assert float(again.cost(rows)) == float(learning.cost(rows))  # type: ignore[misc]
