"""Choice of an update scheme within a memory limit."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.finetuning.networks import graph_of

from hwnas.deploy.finetuning.choice import chosen_scheme, scheme_options
from hwnas.deploy.finetuning.compilation import compile_scheme
from hwnas.deploy.finetuning.contribution import Contributions, LayerContribution
from hwnas.deploy.finetuning.joint_graph import JointGraph
from hwnas.deploy.finetuning.plan import training_memory
from hwnas.deploy.finetuning.scheme import LayerUpdate, UpdateScheme, full
from hwnas.errors import InfeasibleError


def drawn(graph: JointGraph, seed: int) -> Contributions:
    """Contributions at random, which grow with the share of a weight."""
    rng = random.Random(seed)
    found = {}
    for layer in graph.layers:
        whole = rng.uniform(-0.1, 1.0)
        weight = {share: whole * share**0.5 for share in (0.25, 0.5, 1.0)}
        found[layer.name] = LayerContribution(rng.uniform(-0.1, 0.5), weight)
    return Contributions(found, 1.0)


def total_bytes(graph: JointGraph) -> Callable[[UpdateScheme], int]:
    return lambda scheme: training_memory(compile_scheme(graph, scheme), "sgd").total_bytes


def brute_force(graph: JointGraph, contributions: Contributions, limit: int) -> float:
    """Largest contribution of all schemes within the limit."""
    options = [scheme_options(layer) for layer in graph.layers]
    best = -1.0
    for updates in itertools.product(*options):
        chosen = zip(graph.layers, updates, strict=True)
        scheme = UpdateScheme({each.name: u for each, u in chosen if u.weight or u.bias})
        value = contributions.of(scheme)
        if scheme.layers and value > best and total_bytes(graph)(scheme) <= limit:
            best = value
    return best


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.6])
def test_choice_is_the_best_of_all_schemes(share: float) -> None:
    graph = graph_of("plain")
    cost, contributions = total_bytes(graph), drawn(graph, 1)
    least = min(cost(UpdateScheme({each.name: LayerUpdate()})) for each in graph.layers)
    limit = round(least + share * (cost(full(graph.layers)) - least))
    found = chosen_scheme(graph.layers, contributions, cost, limit)
    assert cost(found) <= limit
    assert contributions.of(found) == pytest.approx(brute_force(graph, contributions, limit))


@pytest.mark.slow
@settings(max_examples=6)
@given(seed=st.integers(0, 99), share=st.floats(0.0, 1.1))
def test_choice_never_exceeds_its_limit(seed: int, share: float) -> None:
    graph = graph_of("convolutional")
    cost = total_bytes(graph)
    least = min(cost(UpdateScheme({each.name: LayerUpdate()})) for each in graph.layers[-1:])
    limit = round(least + share * (cost(full(graph.layers)) - least))
    found = chosen_scheme(graph.layers, drawn(graph, seed), cost, limit)
    assert found.layers
    assert cost(found) <= limit


def test_choice_says_which_limit_is_the_least() -> None:
    graph = graph_of("plain")
    cost, contributions = total_bytes(graph), drawn(graph, 0)
    with pytest.raises(InfeasibleError, match="too little to train anything; the least is") as why:
        chosen_scheme(graph.layers, contributions, cost, 1000)
    least = int(str(why.value).split("the least is ")[1].split(" bytes")[0].replace(",", ""))
    found = chosen_scheme(graph.layers, contributions, cost, least)
    assert cost(found) <= least
    with pytest.raises(InfeasibleError):
        chosen_scheme(graph.layers, contributions, cost, least - 1)
