"""The plan that follows from a budget: invariants for any machine and any data."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.planning import JobFacts, Plan, TrainingSpeed, make_plan
from hwnas.search.data.raw_images import TargetKind
from hwnas.search.engine.rungs import Rungs
from hwnas.search_spaces import Architecture

SHAPE = (112, 112, 3)
MACS = (2_000_000, 13_000_000, 93_000_000)


def speeds(fastest: float) -> list[TrainingSpeed]:
    """Simulate training speeds: images per second fall with MACs; bf16 is 1.5 times as fast."""
    return [
        TrainingSpeed(
            Architecture("resnet", (("macs", macs),)), macs, precision, fastest * gain * 2e6 / macs
        )
        for macs in MACS
        for precision, gain in (("fp32", 1.0), ("bf16", 1.5))
    ]


def plan(
    minutes: float,
    images: int = 8500,
    fastest: float = 5000,
    cores: int = 2,
    given: dict[str, Any] | None = None,
) -> Plan:
    return make_plan(JobFacts(images, SHAPE, "classes", minutes, cores), speeds(fastest), given)


def rungs(made: Plan) -> Rungs:
    prefix = "search.fidelity."
    table = {k.removeprefix(prefix): v for k, v in made.values.items() if k.startswith(prefix)}
    return Rungs(**{**table, "rungs": tuple(table["rungs"])})


def seconds_per_image(macs: float, fastest: float) -> float:
    """Return the time of one image according to `speeds`, in bf16."""
    return macs / 2e6 / fastest / 1.5


def wall_minutes(made: Plan, facts: JobFacts, fastest: float) -> float:
    """Return the time of all trainings, with the reference network, if no core is ever idle."""
    left, before, found = made.values["search.trials"], 0.0, 0.0
    most = made.values["search.options.most_macs"]
    sizes = np.geomspace(max(most / 16, MACS[0]), most, left)
    epochs_minutes = made.values["train.epochs"] * facts.images / 60
    minutes = [epochs_minutes * seconds_per_image(macs, fastest) for macs in sizes]
    reference = made.values["deploy.reference_minutes"]
    for share in made.values["search.fidelity.rungs"]:
        together = ((share - before) * left * fmean(minutes) + reference) / facts.cores
        found += max(together, (share - before) * minutes[-1])
        left, before, reference = rungs(made).left(left), share, 0.0
    return found


@pytest.mark.slow
@settings(max_examples=30)
@given(
    minutes=st.floats(3, 600),
    images=st.integers(100, 200_000),
    fastest=st.floats(50, 20_000),
    cores=st.integers(1, 16),
)
def test_plan_fits_all_trainings_into_the_budget(
    minutes: float, images: int, fastest: float, cores: int
) -> None:
    made = plan(minutes, images, fastest, cores)
    facts = JobFacts(images, SHAPE, "classes", minutes, cores)
    assert 0 < wall_minutes(made, facts, fastest) <= 1.02 * max(0.2 * minutes, minutes - 1.2)
    assert MACS[0] <= made.values["search.options.most_macs"] <= 1.01 * MACS[-1]
    assert made.values["train.precision"] == "bf16"
    for key in ("train.epochs", "train.budget_minutes", "deploy.reference_minutes"):
        assert made.values[key] > 0
    assert made.values["deploy.top"] >= 2
    assert len(made.summary) == 2


@pytest.mark.slow
@settings(max_examples=30)
@given(minutes=st.floats(3, 600), fastest=st.floats(200, 20_000), slowdown=st.floats(0.5, 4))
def test_plan_treats_a_slowdown_as_slower_training(
    minutes: float, fastest: float, slowdown: float
) -> None:
    facts = JobFacts(8500, SHAPE, "classes", minutes, 2)
    corrected = make_plan(facts, speeds(fastest), slowdown=slowdown).values
    slower = make_plan(facts, speeds(fastest / slowdown)).values
    assert corrected["search.trials"] == slower["search.trials"]
    for key in ("train.epochs", "train.budget_minutes", "search.options.most_macs"):
        assert corrected[key] == pytest.approx(slower[key], rel=0.02)


def test_plan_leaves_the_minutes_out_that_are_spent_already() -> None:
    facts = JobFacts(8500, SHAPE, "classes", 45, 2)
    late = replace(facts, spent_minutes=5.0)
    assert wall_minutes(make_plan(late, speeds(5000)), late, 5000) < 40


def test_plan_uses_most_of_the_budget_unless_it_is_more_than_enough() -> None:
    def used(minutes: float, images: int, fastest: float) -> float:
        made = plan(minutes, images, fastest)
        return wall_minutes(made, JobFacts(images, SHAPE, "classes", minutes, 2), fastest) / minutes

    assert used(45, 8500, 5000) > 0.85
    assert used(600, 500, 20_000) < 0.3


def test_plan_limits_minutes_of_trainings_that_are_slower_than_expected() -> None:
    values = plan(45).values
    largest = seconds_per_image(values["search.options.most_macs"], 5000)
    minutes = values["train.epochs"] * 8500 * largest / 60
    assert minutes < values["train.budget_minutes"] < 1.2 * minutes


def test_plan_gives_a_third_of_the_time_to_networks_of_the_last_rung() -> None:
    for minutes in (15, 45, 240):
        made = plan(minutes)
        shares = [0.0, *made.values["search.fidelity.rungs"]]
        whole = rungs(made).cost(made.values["search.trials"])
        assert made.values["deploy.top"] * (1 - shares[-2]) > whole / 3


def test_plan_averages_weights_only_where_networks_are_scored_before_their_end() -> None:
    for minutes in (15, 240):
        made = plan(minutes)
        assert (made.values["train.ema"] > 0) == (len(made.values["search.fidelity.rungs"]) > 1)
    assert plan(15).values["train.ema"] == 0
    assert plan(240).values["train.ema"] > 0


def test_plan_grows_with_the_budget() -> None:
    short, middle, long = (plan(minutes, fastest=2000) for minutes in (6, 45, 600))
    for key in ("search.trials", "search.options.most_macs", "train.budget_minutes"):
        values = [each.values[key] for each in (short, middle, long)]
        assert values == sorted(values), key
        assert values[0] < values[2], key


@pytest.mark.parametrize("minutes", [15, 45, 120])
def test_plan_of_a_slower_machine_has_fewer_smaller_networks_of_similar_spacing(
    minutes: int,
) -> None:
    made = [plan(minutes, 4300, fastest).values for fastest in (500, 1000, 2000, 5000, 10_000)]
    for key in ("search.trials", "search.options.most_macs"):
        values = [values[key] for values in made]
        assert values == sorted(values), key
    epochs = [values["train.epochs"] for values in made]
    assert all(fast > 0.95 * slow for slow, fast in pairwise(epochs)), "one more network costs some"
    for values in made:
        if values["search.trials"] > 3:
            ratio = min(16, values["search.options.most_macs"] / MACS[0])
            assert ratio ** (1 / (values["search.trials"] - 1)) < 2


@pytest.mark.parametrize("minutes", [15, 20, 30])
def test_plan_of_two_networks_trains_smaller_ones_rather_than_briefly(minutes: int) -> None:
    made = plan(minutes, 4300, fastest=500).values
    assert made["search.trials"] == 2
    assert made["train.epochs"] > 60


def test_plan_leaves_out_networks_that_miss_a_limit() -> None:
    facts = JobFacts(8500, SHAPE, "classes", 600, 2)
    free = make_plan(facts, speeds(2000)).values
    tight = make_plan(replace(facts, most_macs=5e6), speeds(2000)).values
    assert free["search.options.most_macs"] > tight["search.options.most_macs"]
    assert tight["search.options.most_macs"] <= 5.1e6
    assert tight["train.epochs"] > free["train.epochs"]
    supernet = [
        make_plan(replace(facts, most_macs=most), speeds(2000), {"search.evaluator": "supernet"})
        for most in (None, 5e6)
    ]
    wide, narrow = (max(made.values["space.width"]) for made in supernet)
    assert narrow < wide
    none_keeps = make_plan(replace(facts, most_macs=1.0), speeds(2000)).values
    assert none_keeps["search.options.most_macs"] >= MACS[0]


@pytest.mark.slow
@settings(max_examples=30)
@given(images=st.integers(100, 100_000))
def test_plan_trains_more_images_for_fewer_epochs(images: int) -> None:
    few, many = (plan(10_000, number) for number in (images, 4 * images))
    assert many.values["train.epochs"] == pytest.approx(few.values["train.epochs"] / 2, rel=0.02)


def test_plan_chooses_smaller_networks_if_a_family_trains_slowly() -> None:
    fast = [replace(speed, family="fast") for speed in speeds(5000)]
    slow = [replace(speed, family="slow") for speed in speeds(1000)]
    facts = JobFacts(8500, SHAPE, "classes", 45, 2)
    both, alone = make_plan(facts, [*fast, *slow]).values, make_plan(facts, fast).values
    assert both["search.options.most_macs"] < alone["search.options.most_macs"]


def test_plan_leaves_time_for_each_target_and_number_format() -> None:
    facts = JobFacts(8500, SHAPE, "classes", 15, 2)

    def epochs(**changes: float) -> float:
        found: float = make_plan(replace(facts, **changes), speeds(5000)).values["train.epochs"]
        return found

    assert epochs(targets=3) == epochs(spent_minutes=0.7) < epochs()
    assert epochs(formats=2) == epochs(spent_minutes=0.3) < epochs()


def test_plan_scores_each_network_in_every_number_format() -> None:
    for minutes in (15, 45, 300):
        facts = JobFacts(8500, SHAPE, "classes", minutes, 2)
        one, two = (make_plan(replace(facts, formats=n), speeds(5000)) for n in (1, 2))
        networks = two.values["search.trials"] // 2
        assert two.values["search.trials"] == two.values["search.batch"] == 2 * networks
        assert two.values["search.fidelity.rungs"] == [1.0]
        assert networks <= one.values["search.trials"]
        assert networks <= two.values["deploy.top"] <= 2 * networks
        assert "each is scored in 2 number formats" in two.summary[0]
    given = {"search.trials": 9}
    made = make_plan(replace(facts, formats=2), speeds(5000), given)
    assert made.values["search.trials"] == 8


def test_plan_keeps_the_number_of_trials_of_the_recipe() -> None:
    facts = JobFacts(8500, SHAPE, "classes", 45, 2)
    many, few = (plan(45, given={"search.trials": number}) for number in (40, 4))
    assert many.values["search.trials"] == 40
    assert few.values["search.trials"] == 4
    minutes = [wall_minutes(made, facts, 5000) for made in (many, few)]
    assert minutes[0] == pytest.approx(minutes[1], rel=0.05)


def test_plan_for_a_supernet_divides_time_into_training_and_fine_tuning() -> None:
    values = plan(45, given={"search.evaluator": "supernet"}).values
    assert "search.fidelity.rungs" not in values
    finetuning = values["deploy.top"] * values["deploy.finetune_minutes"] / 2
    assert finetuning + values["train.budget_minutes"] < 45
    assert finetuning > 45 / 4
    assert values["space.width"][0] == 0.5
    longer = plan(450, given={"search.evaluator": "supernet"}).values
    assert max(longer["space.width"]) > max(values["space.width"])


def test_plan_crops_small_images_less_and_mirrors_no_grey_images() -> None:
    def made(shape: tuple[int, int, int]) -> Plan:
        return make_plan(JobFacts(8500, shape, "classes", 45, 2), speeds(2000))

    assert made((28, 28, 1)).values["train.crop"] > made(SHAPE).values["train.crop"]
    assert made((28, 28, 1)).values["train.flip"] is False
    assert made(SHAPE).values["train.flip"] is True


def test_plan_for_regression_uses_no_crop_cutmix_or_flip() -> None:
    values = make_plan(JobFacts(8500, SHAPE, "values", 45, 2), speeds(2000)).values
    assert not {"train.crop", "train.cutmix", "train.flip"} & set(values)


@given(
    minutes=st.floats(5, 600),
    images=st.integers(500, 1_000_000),
    fastest=st.floats(20, 50_000),
    formats=st.integers(1, 3),
)
def test_compression_fits_into_its_budget(
    minutes: float, images: int, fastest: float, formats: int
) -> None:
    facts = JobFacts(
        *(images, SHAPE, "classes", minutes, 2),
        **{"formats": formats, "converts": formats > 1, "pretrained": True},
        validation_images=images // 10,
    )
    made = make_plan(facts, speeds(fastest)).values
    assert made["search.evaluator"] == "supernet"
    assert made["deploy.reference"] is True
    networks = made["deploy.top"] + made["deploy.spare"]
    tuned = networks * made["deploy.finetune_minutes"] / facts.cores
    assert made["train.budget_minutes"] + tuned < minutes
    assert 20 <= made["search.trials"] <= 60 * (1 + formats) // 2
    assert 50 <= made.get("search.validation_images", images // 10) <= images // 10


def test_compression_scores_less_where_that_takes_longer() -> None:
    facts = JobFacts(8500, SHAPE, "classes", 20, 2, validation_images=5000, pretrained=True)
    plans = [make_plan(facts, speeds(fastest)).values for fastest in (50_000, 2000, 50)]
    trials = [made["search.trials"] for made in plans]
    assert trials[0] == 60
    assert trials == sorted(trials, reverse=True)
    assert 200 <= plans[-1]["search.validation_images"] < 5000


@pytest.mark.parametrize("kind", ["classes", "values", "masks", "boxes"])
def test_compression_has_settings_that_the_targets_allow(kind: TargetKind) -> None:
    facts = JobFacts(8500, SHAPE, kind, 20, 2, pretrained=True, batch_norm=False)
    made = make_plan(facts, speeds(5000)).values
    moves = kind in ("masks", "boxes")
    assert made.get("train.teacher_sees") == (None if moves else "plain")
    assert ("train.crop" in made) == (kind != "values")
    with_norms = make_plan(replace(facts, batch_norm=True), speeds(5000)).values
    assert made["train.learning_rate"] < with_norms["train.learning_rate"]


def test_compression_is_not_planned_if_networks_are_to_be_trained_alone() -> None:
    facts = JobFacts(8500, SHAPE, "classes", 20, 2, pretrained=True)
    made = make_plan(facts, speeds(5000), {"search.evaluator": "train"}).values
    assert "train.epochs" in made
    assert "deploy.replacements" not in made
