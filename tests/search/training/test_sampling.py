from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.search.training.sampling import SAMPLING, sandwich, teacher, uniform
from hwnas.search_spaces import mobilenet

SPACE = mobilenet((8, 8, 1), 10)


@given(st.integers(0, 1000), st.integers(0, 4))
def test_a_sandwich_is_the_largest_some_random_ones_and_the_smallest(seed: int, count: int) -> None:
    networks = sandwich(SPACE, random.Random(seed), count)
    assert networks[0] == SPACE.largest()
    assert networks[-1] == SPACE.smallest()
    assert len(networks) == count + 2


@given(st.integers(0, 1000), st.integers(0, 4))
def test_a_teacher_teaches_random_ones_alone(seed: int, count: int) -> None:
    networks = teacher(SPACE, random.Random(seed), count)
    rng = random.Random(seed)
    assert networks == [SPACE.largest(), *(SPACE.sample(rng) for _ in range(count + 1))]


@given(st.integers(0, 1000))
def test_uniform_is_one_random_network(seed: int) -> None:
    [network] = uniform(SPACE, random.Random(seed), 3)
    assert network == SPACE.sample(random.Random(seed))


@pytest.mark.parametrize("name", sorted(SAMPLING))
def test_all_draw_from_the_generator_alone(name: str) -> None:
    """Workers that train together draw the same networks, or they would wait for each other."""
    draws = [SAMPLING[name](SPACE, random.Random(7), 2) for _ in range(2)]
    assert draws[0] == draws[1]
    rng = random.Random(7)
    assert SAMPLING[name](SPACE, rng, 2) != SAMPLING[name](SPACE, rng, 2)
