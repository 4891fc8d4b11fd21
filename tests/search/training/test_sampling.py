from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search.training.sampling import (
    SAMPLING,
    check_sampling,
    networks_a_step,
    sampling_rule,
)
from hwnas.search.training.sampling.bit_groups import bit_groups
from hwnas.search.training.sampling.fair import fair, fair_cycle
from hwnas.search.training.sampling.progressive import open_options, progressive
from hwnas.search.training.sampling.rules import sandwich, teacher, uniform
from hwnas.search_spaces import (
    Architecture,
    MobileNetConfig,
    MobileNetSpace,
    SearchSpace,
    Stage,
    mobilenet,
)
from hwnas.search_spaces.quantised import QuantisationConfig, QuantisedSpace

SPACE = mobilenet((8, 8, 1), 10)
TEACHERLESS = {"fair", "uniform"}
SHARES = st.floats(0, 1, exclude_max=True)


def by_size(networks: Sequence[Architecture]) -> list[float]:
    """Return losses that are lower for larger options."""
    return [-sum(float(option) for _, option in network.values) for network in networks]


def drawn(
    name: str, seed: int = 7, count: int = 2, step: int = 3, share: float = 0.9
) -> list[Architecture]:
    rng = random.Random(f"{seed}-{step}")
    return sampling_rule(name)(SPACE, rng, count, step=step, share=share, seed=seed, losses=by_size)


@pytest.mark.parametrize("name", sorted(SAMPLING))
class TestEveryRule:
    def test_draws_the_same_networks_on_every_worker(self, name: str) -> None:
        """Otherwise workers would wait for each other's gradients for ever."""
        assert drawn(name) == drawn(name)

    def test_draws_other_networks_for_each_step_and_seed(self, name: str) -> None:
        assert len({tuple(drawn(name, step=step)) for step in range(5)}) == 5
        assert drawn(name, seed=8) != drawn(name)

    def test_draws_the_stated_number_of_valid_networks(self, name: str) -> None:
        for count in range(4):
            networks = drawn(name, count=count)
            assert len(networks) == networks_a_step(name, count)
            assert all(SPACE.check(network) == network for network in networks)

    def test_draws_the_largest_network_first_unless_it_has_no_teacher(self, name: str) -> None:
        first = [drawn(name, step=step)[0] == SPACE.largest() for step in range(20)]
        assert (not any(first)) if name in TEACHERLESS else all(first)


@given(st.integers(0, 1000), st.integers(0, 4))
def test_sandwich_draws_largest_random_and_smallest_networks(seed: int, count: int) -> None:
    networks = sandwich(SPACE, random.Random(seed), count)
    assert networks[0] == SPACE.largest()
    assert networks[-1] == SPACE.smallest()
    assert len(networks) == count + 2


@given(st.integers(0, 1000), st.integers(0, 4))
def test_teacher_rule_draws_the_largest_and_random_networks(seed: int, count: int) -> None:
    networks = teacher(SPACE, random.Random(seed), count)
    rng = random.Random(seed)
    assert networks == [SPACE.largest(), *(SPACE.sample(rng) for _ in range(count + 1))]


@given(st.integers(0, 1000))
def test_uniform_rule_draws_one_random_network(seed: int) -> None:
    [network] = uniform(SPACE, random.Random(seed), 3)
    assert network == SPACE.sample(random.Random(seed))


@given(st.integers(0, 1000), st.integers(0, 3))
def test_bit_groups_draw_networks_of_fewer_and_fewer_bits(seed: int, count: int) -> None:
    space = QuantisedSpace(SPACE, QuantisationConfig((2, 4, 6, 8), (4, 8)))
    networks = bit_groups(space, random.Random(seed), count)
    assert networks[0] == space.largest()
    assert len(networks) == count + 2
    falling = [8, 6, 4, 2]
    for place, network in enumerate(networks[1:]):
        bits = {v for n, v in network.values if n.endswith("weight_bits")}
        first, last = place * 4 // (count + 1), -(-(place + 1) * 4 // (count + 1))
        assert bits <= set(falling[first : max(last, first + 1)])


@given(SHARES)
def test_auto_rule_is_progressive_or_sandwich_if_pretrained(share: float) -> None:
    assert drawn("auto", share=share) == drawn("progressive", share=share)
    trained = mobilenet((8, 8, 1), 10)
    trained.pretrained = True
    rng = random.Random("7-3")
    assert sampling_rule("auto")(trained, rng, 2, share=share) == drawn("sandwich")


def test_sampling_rule_passes_only_the_arguments_a_rule_takes() -> None:
    rule = sampling_rule("own_parts:by_the_step")
    networks = rule(SPACE, random.Random(0), 1, step=4, share=0.5, seed=3, losses=by_size)
    assert networks == [SPACE.sample(random.Random(4))]


@pytest.fixture(autouse=True)
def own_parts_importable(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.syspath_prepend(request.path.parent.parent)


OPTIONS = st.sampled_from([(1,), (1, 2), (1, 2, 3), (1, 3)])
KERNELS = st.sampled_from([(3,), (3, 5), (3, 5, 7)])
SPACES = st.builds(
    lambda depths, kernels, ratios, width: MobileNetSpace(
        MobileNetConfig(
            stages=tuple(
                Stage(8, 1, depth=d, kernel_size=k, expand_ratio=r)
                for d, k, r in zip(depths, kernels, ratios, strict=True)
            ),
            resolution=(8,),
            width=width,
            in_channels=1,
            outputs=10,
        )
    ),
    st.tuples(OPTIONS, OPTIONS),
    st.tuples(KERNELS, KERNELS),
    st.tuples(OPTIONS, OPTIONS),
    st.sampled_from([(1.0,), (0.5, 1.0), (0.5, 0.75, 1.0)]),
)
"""Choices of one to three options, some of which are there in some networks only."""


class TestFairRule:
    @given(SPACES, st.integers(0, 99), st.integers(0, 3), st.integers(0, 2))
    def test_trains_each_option_equally_often_per_cycle(
        self, space: MobileNetSpace, seed: int, count: int, cycle: int
    ) -> None:
        if not space.choices:
            return
        steps = math.lcm(fair_cycle(space), count + 1) // (count + 1)
        counts = self.counts(space, seed, count, range(cycle * steps, (cycle + 1) * steps))
        for choice in space.choices:
            trained = {counts[choice.name, option] for option in choice.options}
            assert len(trained) == 1, choice
            assert trained.pop() > 0

    @given(SPACES, st.integers(0, 99), st.integers(1, 40))
    def test_counts_of_options_differ_by_at_most_one_at_any_time(
        self, space: MobileNetSpace, seed: int, steps: int
    ) -> None:
        counts = self.counts(space, seed, 0, range(steps))
        for choice in space.choices:
            trained = [counts[choice.name, option] for option in choice.options]
            assert max(trained) - min(trained) <= 1

    def counts(
        self, space: SearchSpace, seed: int, count: int, steps: range
    ) -> Counter[tuple[str, object]]:
        networks = (fair(space, random.Random(0), count, step, seed) for step in steps)
        return Counter(pair for step in networks for network in step for pair in network.values)

    def test_trains_each_option_once_per_step_of_as_many_networks(self) -> None:
        """This is the strict fairness of FairNAS."""
        config = MobileNetConfig(
            stages=(Stage(8, 1, depth=(3,), kernel_size=(3, 5, 7), expand_ratio=(2, 3, 4)),),
            resolution=(8,),
            width=(1.0,),
            in_channels=1,
            outputs=10,
        )
        space = MobileNetSpace(config)
        for step in range(10):
            counts = self.counts(space, 0, 2, range(step, step + 1))
            assert set(counts.values()) == {1}


class TestProgressiveRule:
    @given(SHARES, SHARES)
    def test_keeps_options_open_and_the_largest_always_open(self, one: float, other: float) -> None:
        early, late = (open_options(SPACE, share) for share in sorted((one, other)))
        for choice in SPACE.choices:
            assert set(early[choice.name]) <= set(late[choice.name]) <= set(choice.options)
            assert early[choice.name][-1] == choice.options[-1]

    @given(SPACES)
    def test_opens_from_only_the_largest_to_every_option(self, space: MobileNetSpace) -> None:
        assert progressive(space, random.Random(0), 3, 0.0) == [space.largest()]
        assert open_options(space, 1.0) == {c.name: c.options for c in space.choices}

    def test_opens_kernel_sizes_then_depths_then_expansion_ratios(self) -> None:
        opened: dict[str, float] = {}
        for hundredth in range(100):
            for name, options in open_options(SPACE, hundredth / 100).items():
                if len(options) > 1:
                    opened.setdefault(name.rpartition(".")[2], hundredth / 100)
        order = [name for name in opened if name in ("kernel_size", "depth", "expand_ratio")]
        assert order == ["kernel_size", "depth", "expand_ratio"]
        assert opened["kernel_size"] == pytest.approx(0.3, abs=0.011)

    @given(SHARES, st.integers(0, 99))
    def test_draws_only_open_options(self, share: float, seed: int) -> None:
        options = open_options(SPACE, share)
        for network in progressive(SPACE, random.Random(seed), 2, share):
            assert all(option in options[name] for name, option in network.values)

    @given(SHARES)
    def test_draws_the_largest_network_first(self, share: float) -> None:
        assert progressive(SPACE, random.Random(0), 2, share)[0] == SPACE.largest()


class TestAttentiveRule:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["attentive-best", "attentive-worst"])
    def test_draws_the_best_or_worst_of_three_networks_of_similar_macs(self, name: str) -> None:
        asked: list[Sequence[Architecture]] = []

        def losses(networks: Sequence[Architecture]) -> list[float]:
            asked.append(networks)
            return by_size(networks)

        best = min if name == "attentive-best" else max
        spread = []
        for seed in range(20):
            networks = SAMPLING[name](SPACE, random.Random(seed), 1, losses=losses)
            assert networks[::2] == [SPACE.largest(), SPACE.smallest()]
            candidates = asked.pop()
            assert not asked
            assert len(candidates) == 3
            assert by_size(networks)[1] == best(by_size(candidates))
            macs = [SPACE.workload(network).macs for network in candidates]
            spread.append((max(macs) - min(macs)) / macs[0])
        assert sorted(spread)[10] < 0.1

    def test_refuses_a_space_without_macs(self) -> None:
        from own_parts import Layers

        with pytest.raises(ConfigError, match=r"space layers does not know them .* 'sandwich'"):
            check_sampling("attentive-best", Layers())
        check_sampling("fair", Layers())
        check_sampling("attentive-best", SPACE)
