"""The tuning loop on simulated GPUs, for which the best configuration is known."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from tests.kernels.planted_surface import LIGHT, PROBLEM, START, PlantedCard, surface, task

from hwnas.errors import DeviceError
from hwnas.kernels.operator import Config
from hwnas.kernels.resources import Resources
from hwnas.kernels.tuning.constraints import Problem
from hwnas.kernels.tuning.cost_model import CostModel
from hwnas.kernels.tuning.proposers import PROPOSERS, EvolutionProposer
from hwnas.kernels.tuning.trial import TuningTrial
from hwnas.kernels.tuning.tuner import TuningResult, tune

GRID = list(PROBLEM.solutions())


def tuned(gpu: PlantedCard, seconds: float = 30.0, **options: Any) -> TuningResult:
    return tune(task(), gpu, seconds=seconds, clock=gpu.clock, **options)


def configs(trials: Sequence[TuningTrial]) -> list[Config]:
    return [trial.config for trial in trials]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROPOSERS)
def test_tune_nearly_finds_the_best_config_in_few_measurements(name: str) -> None:
    shares = []
    for seed in range(8):
        gpu = PlantedCard(surface(seed))
        outcome = tuned(gpu, 20.0, proposer=PROPOSERS[name], seed=seed)
        assert outcome.best
        shares.append(outcome.best.p50_us / min(map(gpu.time_us, GRID)))
        assert len(outcome.trials) < len(GRID) / 5
    assert max(shares) < 1.05, shares


@pytest.mark.slow
def test_tune_begins_with_the_default_and_chooses_nothing_slower() -> None:
    gpu = PlantedCard(lambda config: 10.0 if config == START else 11.0)
    outcome = tuned(gpu)
    assert outcome.trials[0].config == START
    assert outcome.best
    assert outcome.best.config == START


@pytest.mark.slow
@pytest.mark.parametrize("slowest_us", [1e2, 1e5])
@pytest.mark.parametrize("seconds", [1.0, 5.0, 30.0])
def test_tune_keeps_within_its_budget_and_uses_half_of_it(
    seconds: float, slowest_us: float
) -> None:
    times = surface(1)
    gpu = PlantedCard(lambda config: min(times(config), slowest_us))
    outcome = tuned(gpu, seconds)
    assert outcome.best
    assert 0.5 * seconds < gpu.now <= seconds + 3e-6 * slowest_us  # the last may be slow


def test_tune_without_time_starts_nothing() -> None:
    gpu = PlantedCard(surface(0))
    outcome = tuned(gpu, seconds=0)
    assert outcome == TuningResult(())
    assert outcome.best is None
    assert gpu.now == 0


def test_tune_drops_a_much_slower_config_after_three_runs() -> None:
    gpu = PlantedCard(lambda config: 5.0 if config["num_warps"] == START["num_warps"] else 60.0)
    outcome = tuned(gpu, 10.0)
    slow = [trial for trial in outcome.trials if trial.verdict == "slow"]
    assert slow
    assert "12.0 times as long as the best after 3 runs" in {trial.reason for trial in slow}
    assert {gpu.runs[tuple(trial.config.values())] for trial in slow} == {3}
    assert all(
        trial.config["num_warps"] == 1 for trial in outcome.trials if trial.verdict == "timed"
    )


@pytest.mark.slow
def test_tune_repeats_its_trials_for_the_same_seed() -> None:
    one, again, other = (tuned(PlantedCard(surface(3)), seed=seed) for seed in (7, 7, 8))
    assert one == again
    assert configs(one.trials) != configs(other.trials)


def test_tune_tries_each_config_of_a_small_problem_once() -> None:
    small = Problem({"BLOCK_M": (16, 32, 64), "num_warps": (1, 2)})
    gpu = PlantedCard(lambda config: float(config["BLOCK_M"] * config["num_warps"]))
    start = {"BLOCK_M": 64, "num_warps": 1}
    outcome = tune(task(small, start), gpu, seconds=1000, clock=gpu.clock)
    tried = [tuple(config.values()) for config in configs(outcome.trials)]
    assert sorted(tried) == sorted({tuple(config.values()) for config in small.solutions()})
    assert outcome.best
    assert outcome.best.config == {"BLOCK_M": 16, "num_warps": 1}
    assert gpu.now < 10


@pytest.mark.slow
def test_tune_neither_times_nor_chooses_wrong_configs() -> None:
    gpu = PlantedCard(surface(0), wrong=lambda config: config["num_stages"] > 2)
    outcome = tuned(gpu)
    wrong = [trial for trial in outcome.trials if trial.verdict == "wrong"]
    assert wrong
    assert wrong[0].reason == "its largest error is 5 times the tolerance"
    assert not {tuple(trial.config.values()) for trial in wrong} & set(gpu.runs)
    assert outcome.best
    assert outcome.best.config["num_stages"] <= 2


def test_tune_does_not_time_configs_that_spill_registers() -> None:
    spilling = (Resources(255, 64, 8192, 4),)
    gpu = PlantedCard(
        surface(0), resources=lambda config: spilling if config["BLOCK_N"] > 64 else LIGHT
    )
    outcome = tuned(gpu)
    wasteful = [trial for trial in outcome.trials if trial.verdict == "wasteful"]
    assert "it spills 64 bytes of registers per thread" in {trial.reason for trial in wasteful}
    assert all(n <= 64 for _, n, *_ in gpu.runs)


@pytest.mark.slow
def test_tune_records_why_configs_do_not_compile_or_start() -> None:
    class FailingCard(PlantedCard):
        def times_us(self, config: Config, runs: int) -> Sequence[float]:
            if config["num_warps"] == 8:
                raise RuntimeError("out of resources: threads")
            return super().times_us(config, runs)

    gpu = FailingCard(
        surface(0), resources=lambda config: "no such layout" if config["BLOCK_K"] == 128 else LIGHT
    )
    outcome = tuned(gpu)
    reasons = {trial.reason for trial in outcome.trials if trial.verdict == "failed"}
    assert reasons == {"no such layout", "RuntimeError: out of resources: threads"}
    assert outcome.best


def test_tune_stops_at_a_device_error_and_keeps_its_trials() -> None:
    class LostCard(PlantedCard):
        def error(self, config: Config) -> float:
            if len(self.runs) == 5:
                raise DeviceError("the GPU does nothing more")
            return super().error(config)

    outcome = tuned(LostCard(surface(0)))
    assert outcome.notes == ("stopped: the GPU does nothing more",)
    assert [trial.verdict for trial in outcome.trials].count("failed") == 1
    assert len(outcome.trials) > 5
    assert outcome.best


def test_tune_reports_each_trial_before_an_interruption() -> None:
    gpu, told = PlantedCard(surface(0)), []

    def on_trial(trial: TuningTrial) -> None:
        told.append(trial)
        if len(told) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(gpu, on_trial=on_trial)
    assert len(told) == 9
    assert {tuple(trial.config.values()) for trial in told if trial.times} == set(gpu.runs)


class InvalidProposer:
    """Proposer whose proposals are not valid configurations."""

    def __init__(self, *_: object) -> None:
        self.told: list[TuningTrial] = []

    def ask(self, count: int) -> Sequence[Any]:
        return [None, {}, {**START, "num_warps": "4"}, {**START, "num_warps": 3}, {"a": 1}, "BLOCK"]

    def tell(self, trials: Sequence[TuningTrial]) -> None:
        self.told += trials


@pytest.mark.slow
def test_tune_refuses_invalid_proposals_and_goes_on_with_rules() -> None:
    made = []
    outcome = tuned(
        PlantedCard(surface(0)), proposer=lambda *_: made.append(InvalidProposer()) or made[0]
    )
    reasons = " | ".join(trial.reason for trial in outcome.refused)
    assert len(outcome.refused) == 6
    assert [trial.reason for trial in made[0].told] == [trial.reason for trial in outcome.refused]
    for part in (
        "None is not a conf",
        "num_warps is 3, not one of (1, 2, 4, 8)",
        "has values that are not integers",
    ):
        assert part in reasons
    assert "proposed nothing new 3 times; rules replace it" in outcome.notes[0]
    assert outcome.best


@pytest.mark.slow
@pytest.mark.parametrize("where", ["__init__", "ask", "tell"])
def test_tune_notes_a_failing_proposer_and_goes_on_with_rules(where: str) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("by a model")

    broken = type("Broken", (EvolutionProposer,), {where: fails})
    outcome = tuned(PlantedCard(surface(2)), proposer=broken)
    [note] = outcome.notes
    assert note == "the proposer Broken raised ZeroDivisionError: by a model; rules replace it"
    assert outcome.best
    assert len(outcome.trials) > 30


@pytest.mark.slow
def test_tune_begins_better_with_a_cost_model_of_another_task() -> None:
    def best_of_eight(seed: int, model: CostModel) -> float:
        gpu = PlantedCard(surface(seed))
        outcome = tuned(gpu, 6.0, model=model, seed=1)
        return min(map(gpu.time_us, configs(outcome.trials)[:8])) / min(map(gpu.time_us, GRID))

    with_it, without = [], []
    for seed in range(3):
        times, model = surface(seed), CostModel()
        tuned(PlantedCard(lambda config, times=times: 3 * times(config)), model=model)
        with_it.append(best_of_eight(seed, model))
        without.append(best_of_eight(seed, CostModel()))
    assert fmean(with_it) < 0.85 * fmean(without)


def test_tune_times_the_best_configs_again_in_turn() -> None:
    order: list[tuple[int, ...]] = []

    class LuckyCard(PlantedCard):
        """GPU on which a configuration's first timings are the faster, the later they are made."""

        def times_us(self, config: Config, runs: int) -> Sequence[float]:
            key = tuple(config.values())
            known = self.runs.get(key, 0) >= 30
            luck = 1.0 if known else 1 - 0.001 * len(self.runs)
            if known:
                order.append(key)
            return [luck * time for time in super().times_us(config, runs)]

    gpu = LuckyCard(lambda config: 10.0 if config == START else 10.001)
    outcome = tuned(gpu, 8.0)
    assert len(set(order)) == 3
    assert all(one != other for one, other in pairwise(order))
    assert outcome.best
    assert outcome.best.times
    assert outcome.best.times.n == 30
