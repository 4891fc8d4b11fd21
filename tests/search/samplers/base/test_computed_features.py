from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import numpy as np
import optuna
import pytest

from hwnas.predictors import CostSource, DevicePredictor, shipped_prior
from hwnas.search import Evaluation, Fidelity, Objective, SearchOptions, run_search
from hwnas.search.objectives.candidate_costs import predict_costs
from hwnas.search.objectives.objective import violations
from hwnas.search.samplers import SpaceFeatures, features_of_space
from hwnas.search_spaces import (
    Candidate,
    ProductSpace,
    SearchSpace,
    TrainingSpace,
    mobilenet,
    nasbench201,
)
from hwnas.search_spaces.space.precision import PrecisionSpace

CPU, OTHER = "cpu-onnxruntime-fp32-b1-t1", "cpu-openvino-fp32-b1-t1"
INT8 = "cpu-onnxruntime-int8-b1-t1"
SPACE = mobilenet((16, 16, 3), 10)
CELLS = nasbench201((8, 8, 3), 4, channels=4, cells=1)
ACCURACY = Objective("accuracy", "maximize", limit=0.1)
LATENCY = Objective("latency_ms", "minimize", CPU, limit=0.03)
WORST = Objective("latency_ms", "minimize", None, 0.05, (CPU, OTHER), "worst")
BEST = Objective("latency_ms", "minimize", None, 0.05, (INT8, CPU, OTHER), "min")
SUM = Objective("latency_ms", "minimize", None, 0.08, (CPU, OTHER), "sum")
COUNTS = [Objective(name, "minimize") for name in ("macs", "weight_bytes")]
PARAMS = Objective("params", "minimize", limit=150_000)
PEAK = Objective("peak_activation_bytes", "minimize")


@cache
def costs() -> dict[str, CostSource]:
    """Return predictors of two devices, calibrated on a few networks."""
    rng = random.Random(3)
    workloads = [SPACE.workload(SPACE.sample(rng)) for _ in range(6)]
    return {
        f"latency_ms@{target}": DevicePredictor(target, shipped_prior()).adapt(
            workloads, [factor * workload.macs / 1e8 + 0.005 for workload in workloads]
        )
        for target, factor in ((CPU, 1.0), (OTHER, 2.0), (INT8, 0.5))
    }


def drawn(space: SearchSpace, count: int, seed: int = 0) -> tuple[list[Candidate], np.ndarray]:
    rng = random.Random(seed)
    networks = [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(count))]
    return [Candidate.of(each) for each in networks], np.array([space.encode(n) for n in networks])


def test_feature_codes_equal_those_of_suggested_networks() -> None:
    features = features_of_space(SPACE)
    study = optuna.create_study()
    trial = study.ask(features.distributions)
    network = SPACE.suggest(trial)  # would warn of another distribution
    assert set(trial.params) == set(features.options)
    assert features.code(trial.params).tolist() == SPACE.encode(network).tolist()


def test_features_predict_the_least_cost_in_the_format_of_each_candidate() -> None:
    space = ProductSpace(SPACE, {"precision": PrecisionSpace(("int8", "fp32"))})
    rng = random.Random(2)
    points = [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(6))]
    codes = np.array([space.encode(point) for point in points])
    candidates = [space.candidate(point) for point in points]
    told = predict_costs(space, candidates, [ACCURACY, BEST], costs())
    features = features_of_space(space, [ACCURACY, BEST], costs())
    expected = [each.values[BEST.label] for each in told]
    np.testing.assert_allclose(features.predict(codes)[1].values, expected, rtol=1e-9)
    kept = [each.estimates[BEST.label].interval90[1] <= 0.05 for each in told]
    assert features.allowed(codes).tolist() == kept
    for candidate, costs_of_it in zip(candidates, told, strict=True):
        own = candidate["precision"].as_dict()["number_format"]
        able = {target for target in BEST.targets if f"-{own}-" in target}
        assert {e.target for e in costs_of_it.estimates.values()} == able
        least = min(able, key=lambda target: costs_of_it.estimates[f"latency_ms@{target}"].mean)
        assert costs_of_it.estimates[BEST.label].target == least


@pytest.mark.slow
def test_features_predict_costs_and_limits_as_the_engine_does() -> None:
    objectives = [ACCURACY, LATENCY, WORST, SUM, *COUNTS, PARAMS, PEAK]
    features = features_of_space(SPACE, objectives, costs())
    candidates, codes = drawn(SPACE, 12)
    told = predict_costs(SPACE, candidates, objectives, costs())
    predicted = features.predict(codes)
    assert sorted(predicted) == [1, 2, 3, 4, 5, 6]
    for j, found in predicted.items():
        expected = [each.values[objectives[j].label] for each in told]
        np.testing.assert_allclose(found.values, expected, rtol=1e-9)
        assert not found.deviations.any()
    assert features.known_limits == {o.label for o in (LATENCY, WORST, SUM, PARAMS)}
    kept = []
    for each in told:
        uppers = {label: estimate.interval90[1] for label, estimate in each.estimates.items()}
        missed = violations(objectives, {**each.values, **uppers, "accuracy": 1.0})
        assert set(missed) == features.known_limits | {"accuracy"}
        kept.append(all(violation <= 0 for violation in missed.values()))
    assert features.allowed(codes).tolist() == kept
    assert {True, False} == set(kept)


@pytest.mark.slow
def test_features_predict_triton_latency_as_the_engine_does() -> None:
    target = "cuda-triton-fp16-b1-t1"
    objectives = [ACCURACY, Objective("latency_ms", "minimize", target)]
    candidates, codes = drawn(SPACE, 6)
    workloads = [SPACE.workload(candidate.network) for candidate in candidates]
    untouched = DevicePredictor(target, shipped_prior())
    known = {objectives[1].label: untouched.adapt(workloads[:5], [1.0, 3.0, 2.0, 2.5, 1.5])}
    told = predict_costs(SPACE, candidates, objectives, known)
    expected = [each.values[objectives[1].label] for each in told]
    predicted = features_of_space(SPACE, objectives, known).predict(codes)
    np.testing.assert_allclose(predicted[1].values, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("limited", [LATENCY, WORST, SUM, PARAMS])
def test_features_apply_each_limit_separately(limited: Objective) -> None:
    features = features_of_space(SPACE, [ACCURACY, limited], costs())
    candidates, codes = drawn(SPACE, 12)
    told = predict_costs(SPACE, candidates, [limited], costs())
    label = limited.label
    seen = [
        each.estimates[label].interval90[1] if label in each.estimates else each.values[label]
        for each in told
    ]
    kept = [limited.violation(value) <= 0 for value in seen]
    assert features.allowed(codes).tolist() == kept
    assert {True, False} == set(kept)


def test_features_predict_only_objectives_with_a_predictor() -> None:
    class Timer:
        def cost(self, workloads: object, targets: object) -> list[object]:
            raise AssertionError("nobody asks for a cost")

    mixed = {LATENCY.label: costs()[LATENCY.label], f"latency_ms@{OTHER}": Timer()}
    features = features_of_space(SPACE, [LATENCY, WORST, PEAK, ACCURACY], mixed)
    _, codes = drawn(SPACE, 3)
    assert list(features.predict(codes)) == [0]
    assert features.known_limits == {LATENCY.label}
    assert features.predict(codes[:0])[0].values.shape == (0,)


def test_feature_statistics_distinguish_networks() -> None:
    for space in (SPACE, CELLS):
        features = features_of_space(space)
        _, codes = drawn(space, 20)
        assert features.statistics is not None
        found = features.statistics(codes)
        assert np.isfinite(found).all()
        assert (found[:, -1] == space.depth(codes)).all()
        assert len(np.unique(found, axis=0)) == len(np.unique(codes, axis=0))


@pytest.mark.slow
def test_feature_proxy_correlates_with_the_size() -> None:
    _, codes = drawn(SPACE, 20)
    sizes = [SPACE.workload(SPACE.decode(code)).macs for code in codes]
    assert np.corrcoef(features_of_space(SPACE).proxy(codes), np.log(sizes))[0, 1] > 0.8


def test_features_of_a_product_space_equal_those_of_its_networks() -> None:
    recipes = TrainingSpace({"learning_rate": (0.01, 0.1), "shift_pixels": (0, 1)})
    space = ProductSpace(SPACE, {"recipe": recipes})
    joint = features_of_space(space, [ACCURACY, LATENCY, PARAMS], costs())
    alone = features_of_space(SPACE, [ACCURACY, LATENCY, PARAMS], costs())
    assert list(joint.options)[-2:] == ["recipe.learning_rate", "recipe.shift_pixels"]
    rng = random.Random(0)
    points = [space.sample(rng) for _ in range(6)]
    codes = np.array([space.encode(point) for point in points])
    networks = np.array([SPACE.encode(space.candidate(point).network) for point in points])
    for j in (1, 2):
        assert joint.predict(codes)[j].values.tolist() == alone.predict(networks)[j].values.tolist()
    assert joint.allowed(codes).tolist() == alone.allowed(networks).tolist()
    assert joint.known_limits == alone.known_limits
    assert joint.statistics is not None
    assert alone.statistics is not None
    assert joint.statistics(codes).tolist() == alone.statistics(networks).tolist()


def test_features_of_a_space_without_parts_are_only_its_choices() -> None:
    class Opaque(type(SPACE)):  # type: ignore[misc]
        def parts(self, codes: np.ndarray) -> None:
            return None

    space = Opaque(SPACE.config)
    features = features_of_space(space, [ACCURACY, LATENCY, PARAMS], costs())
    _, codes = drawn(space, 3)
    assert features.statistics is None
    assert (dict(features.predict(codes)), features.known_limits) == ({}, frozenset())
    assert isinstance(features, SpaceFeatures)
    assert features.canonical(codes + 0).tolist() == codes.tolist()


@dataclass(frozen=True)
class Wide:
    """Evaluator that gives wide networks a higher accuracy."""

    key: str = "wide"

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        macs = SPACE.workload(candidate.network).macs
        return Evaluation({"accuracy": float(np.log(macs))}, {"accuracy": 0.0}, 1, "validation")


@pytest.mark.slow
def test_guided_search_evaluates_only_networks_predicted_to_be_feasible() -> None:
    objectives = [Objective("accuracy", "maximize"), LATENCY]
    result = run_search(SPACE, objectives, Wide(), SearchOptions(24, seed=1), costs=costs())
    assert all(trial.feasible for trial in result.trials)
    assert len({trial.candidate.id for trial in result.trials}) == 24
    by_chance = run_search(
        SPACE, objectives, Wide(), SearchOptions(24, "random", seed=1), costs=costs()
    )
    assert not all(trial.feasible for trial in by_chance.trials)
    best = [r.front[0].values["accuracy"] for r in (result, by_chance)]
    assert best[0] > best[1]


def test_nasbench201_features_have_scores_and_excludes_unconnected_cells() -> None:
    joint = ProductSpace(CELLS, {"recipe": TrainingSpace({"learning_rate": (0.01, 0.1)})})
    for space, rest in ((CELLS, []), (joint, [0] * (len(joint.choices) - len(CELLS.choices)))):
        features = features_of_space(space)
        cells = [[0] * 6, [0, 0, 0, 4, 0, 0], [0, 0, 0, 0, 0, 4], [4] * 6]
        codes = np.array([cell + rest for cell in cells])
        assert features.allowed(codes).tolist() == [False, True, False, True]
        assert features.scores is not None
        scores = features.scores(codes)
        assert scores.shape == (4, 3)
        assert (scores[3] > scores[1]).all()  # more convolutions score higher


def test_features_of_a_space_without_a_table_have_no_scores() -> None:
    assert features_of_space(SPACE).scores is None
