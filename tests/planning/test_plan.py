"""What follows from a budget: laws of the plan, whatever the machine and the data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hwnas.planning import Facts, Plan, Speed, make_plan
from hwnas.planning.plan import WIDTHS
from hwnas.search_spaces import Architecture

SHAPE = (112, 112, 3)


def speeds(fastest: float) -> list[Speed]:
    """Four times as slow at twice the width; bf16 half as fast again."""
    return [
        Speed(
            Architecture("resnet", (("width", width),)),
            round(1e7 * width**2),
            precision,
            fastest * gain / (width / WIDTHS[0]) ** 2,
        )
        for width in WIDTHS
        for precision, gain in (("fp32", 1.0), ("bf16", 1.5))
    ]


def plan(minutes: float, images: int = 8500, fastest: float = 2000, cores: int = 2) -> Plan:
    return make_plan(Facts(images, SHAPE, "classes", minutes, cores), speeds(fastest))


def core_minutes(made: Plan) -> float:
    """Of all trainings of successive halving."""
    values, total, before = made.values, 0.0, 0.0
    left = values["search.trials"]
    for rung in values["search.fidelity.rungs"]:
        total += left * (rung - before) * values["train.budget_minutes"]
        left, before = left / values["search.fidelity.keep"], rung
    return total


@given(
    minutes=st.floats(3, 600),
    images=st.integers(100, 200_000),
    fastest=st.floats(50, 20_000),
    cores=st.integers(1, 16),
)
def test_trainings_fill_the_budget_and_leave_time_for_the_rest(
    minutes: float, images: int, fastest: float, cores: int
) -> None:
    made = plan(minutes, images, fastest, cores)
    assert 0.19 * minutes * cores <= core_minutes(made) <= minutes * cores
    assert set(made.values["space.width"]) <= set(WIDTHS)
    assert made.values["train.precision"] == "bf16"
    assert len(made.summary) == 2


def test_a_third_of_the_time_and_more_goes_to_those_that_are_trained_to_the_end() -> None:
    made = plan(45)
    values = made.values
    finalists = values["search.trials"] / values["search.fidelity.keep"] ** 2
    first, second, _ = values["search.fidelity.rungs"]
    assert first < second
    assert finalists * (1 - second) * values["train.budget_minutes"] > core_minutes(made) / 3


def test_the_plan_follows_the_budget() -> None:
    short, middle, long = plan(6, fastest=500), plan(45, fastest=500), plan(240, fastest=500)
    widest = [max(each.values["space.width"]) for each in (short, middle, long)]
    assert widest == sorted(widest)
    assert widest[0] < widest[2]
    tried = [each.values["search.trials"] for each in (short, middle, long)]
    assert tried == sorted(tried)
    assert tried[0] < tried[2]


def test_small_images_are_cropped_less_and_grey_ones_not_mirrored() -> None:
    def made(shape: tuple[int, int, int]) -> Plan:
        return make_plan(Facts(8500, shape, "classes", 45, 2), speeds(2000))

    assert made((28, 28, 1)).values["train.crop"] > made(SHAPE).values["train.crop"]
    assert made((28, 28, 1)).values["train.flip"] is False
    assert made(SHAPE).values["train.flip"] is True


def test_values_keep_their_images_whole() -> None:
    values = make_plan(Facts(8500, SHAPE, "values", 45, 2), speeds(2000)).values
    assert not {"train.crop", "train.cutmix", "train.flip"} & set(values)
