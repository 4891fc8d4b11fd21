"""Product spaces, which search networks together with other roles, such as training recipes."""

from __future__ import annotations

import random

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.errors import ConfigError
from hwnas.search_spaces import (
    Candidate,
    Choice,
    ChoiceCondition,
    ChoiceSpace,
    ProductSpace,
    TrainingSpace,
    mobilenet,
    nasbench201,
    union,
)
from hwnas.search_spaces.registry import joint_space

NETWORKS = mobilenet((8, 8, 1), 10)
RECIPES = TrainingSpace({"learning_rate": (0.01, 0.001), "flip": (True, False), "epochs": (2.0,)})


class Formats(ChoiceSpace):
    """Space of a custom role, with a conditional choice."""

    name = "format"
    choices = (
        Choice("bits", (8, 32)),
        Choice("granularity", ("tensor", "channel"), ChoiceCondition("bits", (8,))),
    )


SPACE = ProductSpace(NETWORKS, {"recipe": RECIPES, "format": Formats()})
seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=30)
@given(seed=seeds)
def test_product_space_converts_points_to_candidates_and_back(seed: int) -> None:
    point = SPACE.sample(random.Random(seed))
    candidate = SPACE.candidate(point)
    assert [role for role, _ in candidate.roles] == ["format", "network", "recipe"]
    assert NETWORKS.check(candidate.network) == candidate.network
    assert RECIPES.check(candidate["recipe"]) == candidate["recipe"]
    assert SPACE.point(candidate) == point
    assert SPACE.decode(SPACE.encode(point)) == point
    assert candidate.as_dict() == point.as_dict()


@settings(max_examples=20)
@given(seed=seeds)
def test_product_space_mutants_and_children_have_all_roles(seed: int) -> None:
    rng = random.Random(seed)
    a, b = SPACE.sample(rng), SPACE.sample(rng)
    mutant, child = SPACE.mutate(a, rng), SPACE.crossover(a, b, rng)
    assert SPACE.candidate(mutant).id != SPACE.candidate(a).id
    assert len(SPACE.candidate(child).roles) == 3


def test_product_space_counts_the_networks_of_a_union() -> None:
    networks = union((16, 16, 3), 10, "cpu", resolution=(16,))
    space = ProductSpace(networks, {"recipe": RECIPES})
    points = [space.sample(random.Random(seed)) for seed in range(6)]
    codes = np.array([space.encode(point) for point in points])
    macs = [space.workload(point).macs for point in points]
    assert space.counted(codes)["macs"].tolist() == macs
    assert space.steps(codes) is not None


def test_candidates_with_different_recipes_have_different_ids() -> None:
    network = NETWORKS.smallest()
    fast, slow = (
        Candidate.of(network, recipe=RECIPES.architecture({"learning_rate": rate, "flip": False}))
        for rate in (0.01, 0.001)
    )
    assert len({fast.id, slow.id, Candidate.of(network).id}) == 3


def test_product_space_size_is_the_product_of_its_parts() -> None:
    cells = nasbench201((8, 8, 3), 4, channels=4, cells=1)
    assert ProductSpace(cells, {"recipe": RECIPES}).size() == 4 * cells.size()
    assert SPACE.size() == NETWORKS.size() * 4 * 3
    codes = np.array([[0] * (len(SPACE.choices) - 2) + [option, 1] for option in (0, 1)])
    assert SPACE.choices[-1].name == "recipe.flip"
    assert len(np.unique(SPACE.canonical(codes), axis=0)) == 2


def test_product_space_suggests_all_roles_by_name() -> None:
    trial = optuna.create_study().ask()
    point = SPACE.suggest(trial)
    assert SPACE.check(point) == point
    assert {"recipe.learning_rate", "format.granularity", "width"} <= trial.params.keys()
    fixed = SPACE.parameters(point, random.Random(0))
    assert fixed.keys() == trial.params.keys()
    assert fixed["recipe.learning_rate"] == trial.params["recipe.learning_rate"]


def test_product_space_has_the_costs_of_its_networks() -> None:
    rng = random.Random(0)
    points = [SPACE.sample(rng) for _ in range(4)]
    networks = [SPACE.candidate(point).network for point in points]
    joint = np.array([SPACE.encode(point) for point in points])
    alone = np.array([NETWORKS.encode(network) for network in networks])
    assert SPACE.counted(joint)["macs"].tolist() == NETWORKS.counted(alone)["macs"].tolist()
    assert SPACE.depth(joint).tolist() == NETWORKS.depth(alone).tolist()
    assert len(SPACE.steps(joint)) == 4
    assert SPACE.workload(points[0]).id == NETWORKS.workload(networks[0]).id
    assert SPACE.outline(points[0]) == NETWORKS.outline(networks[0])
    assert SPACE.network is NETWORKS
    assert NETWORKS.network is NETWORKS
    assert NETWORKS.candidate(networks[0]) == Candidate.of(networks[0])
    assert NETWORKS.point(Candidate.of(networks[0])) == networks[0]


def test_product_space_fingerprint_depends_on_the_recipe_space() -> None:
    other = TrainingSpace({"learning_rate": (0.01, 0.001), "flip": (True, False), "epochs": (3.0,)})
    one = ProductSpace(NETWORKS, {"recipe": RECIPES})
    assert ProductSpace(NETWORKS, {"recipe": other}).fingerprint != one.fingerprint
    candidate = ProductSpace(NETWORKS, {"recipe": other}).candidate(
        ProductSpace(NETWORKS, {"recipe": other}).smallest()
    )
    with pytest.raises(ConfigError, match="is of space recipe-"):
        one.point(candidate)


def test_product_space_refuses_candidates_with_other_roles() -> None:
    with pytest.raises(ConfigError, match=r"has the roles \['network'\]; mobilenet.* has \['form"):
        SPACE.point(Candidate.of(NETWORKS.smallest()))
    with pytest.raises(ConfigError, match="expected at least one, with another name"):
        ProductSpace(NETWORKS, {})


class TestJointSpace:
    """`joint_space`, which makes the space that a recipe's ``[space] name`` lists."""

    def joint(self, *names: str, **options: object) -> object:
        return joint_space(names, (8, 8, 1), 10, options)

    def test_single_name_gives_that_space(self) -> None:
        assert self.joint("mobilenet", preset="tiny").fingerprint == NETWORKS.fingerprint

    def test_role_takes_the_options_of_its_table(self) -> None:
        table = {"learning_rate": [0.1, 0.2], "weight_decay": [], "shift_pixels": [1]}
        space = self.joint("mobilenet", "recipe", preset="tiny", recipe=table)
        assert space.roles["recipe"].choices[0] == Choice("learning_rate", (0.1, 0.2))
        values = space.roles["recipe"].values(space.candidate(space.smallest())["recipe"])
        assert values == {
            "learning_rate": 0.1,
            "label_smoothing": 0.0,
            "cutout": 0.0,
            "shift_pixels": 1,
        }

    @pytest.mark.parametrize(
        ("names", "options", "message"),
        [
            (("recipe", "mobilenet"), {}, "'recipe', which builds no networks; .*: .*mobilenet"),
            (("mobilenet", "recipes"), {}, "unknown role of a space 'recipes'; did you mean"),
            (("mobilenet", "recipe", "recipe"), {}, "has a role twice"),
            (("mobilenet", "recipe"), {"recipe": 3}, r"expected a table, \[space.recipe\]"),
            (
                ("mobilenet", "recipe"),
                {"recipe": {"learning_rates": [1]}},
                r"\[space.recipe\] has no key 'learning_rates'; did you mean 'learning_rate'",
            ),
            (
                ("mobilenet", "recipe"),
                {"recipe": {"learning_rate": [0.1, 0.1]}},
                "choice 'learning_rate' repeats an option",
            ),
        ],
    )
    def test_refuses_names_and_options_that_do_not_fit(
        self, names: tuple[str, ...], options: dict[str, object], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            self.joint(*names, **options)


def test_training_space_refuses_settings_without_two_options() -> None:
    with pytest.raises(
        ConfigError, match=r"no setting of space\.recipe has two options or more; give some"
    ):
        TrainingSpace({"learning_rate": (0.1,), "flip": ()})
