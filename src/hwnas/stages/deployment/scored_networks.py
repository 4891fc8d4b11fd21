"""Networks that a search scored, with the weights of the search, on all validation images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.deploy.cascades.curve import NetworkOutcomes
from hwnas.search import Metric, Scored
from hwnas.search.engine.devices import working_device
from hwnas.search.evaluation.scoring import outputs_of
from hwnas.search.evaluation.settling import settle
from hwnas.search.objectives.front import pick_spread
from hwnas.search_spaces import Candidate
from hwnas.stages.job import Job

__all__ = ["scored_outcomes", "spread_trials"]

_RECALIBRATION_IMAGES = 512  # as many as `SupernetEvaluator` takes


def spread_trials(
    trials: Sequence[Scored], metric: Metric, costs: Mapping[str, float], most: int
) -> list[Scored]:
    """Return at most so many trials, from the front of score and cost to those behind it.

    Args:
        trials: Trials of a search.
        metric: Metric of their scores.
        costs: Cost of each network by id; above 0.
        most: Largest number of trials.
    """
    if len(trials) <= most:
        return list(trials)
    sign = -1 if metric.direction == "maximize" else 1
    table = [[sign * t.values[metric.name], np.log(costs[t.candidate.id])] for t in trials]
    return [trials[place] for place in pick_spread(np.array(table), most)]


def scored_outcomes(
    job: Job,
    trials: Sequence[Scored],
    costs: Mapping[str, float],
    weights: Mapping[str, Tensor] | None,
) -> dict[str, NetworkOutcomes]:
    """Return the outcomes of networks with the weights that the search scored them with, by id.

    With a supernet, these are inherited weights after a recalibration of BatchNorm; otherwise they
    are those that the evaluator keeps of the networks that it trained. Networks whose weights were
    not kept are left out.

    Args:
        job: Run of the trials, of a classification task.
        trials: Trials of the networks.
        costs: Cost of each network by id.
        weights: Weights of the supernet, if there is one.
    """
    network_of = _kept(job) if weights is None else _inherited(job, weights)
    task, space, split = job.run_inputs.task, job.run_inputs.space, job.run_inputs.data.validation
    found: dict[str, NetworkOutcomes] = {}
    with job.reporter.stage("scoring networks for cascades") as advance:
        for done, trial in enumerate(trials):
            name = trial.candidate.id
            advance(done / len(trials), name)
            if (network := network_of(trial.candidate)) is None:
                continue
            shape = space.input_shape(trial.candidate.network)
            parts = [outputs.numpy() for outputs, _ in outputs_of(network, task, split, shape)]
            found[name] = NetworkOutcomes.of(np.concatenate(parts), split.targets, costs[name])
    return found


def _inherited(job: Job, weights: Mapping[str, Tensor]) -> Callable[[Candidate], nn.Module]:
    inputs = job.run_inputs
    supernet = inputs.space.supernet()
    supernet.shared.load_state_dict(weights)
    supernet.eval()

    def network_of(candidate: Candidate) -> nn.Module:
        network = _placed(supernet.extract(candidate.network))
        shape = inputs.space.input_shape(candidate.network)
        settle(network, inputs.task, inputs.data, shape, _RECALIBRATION_IMAGES)
        return network

    return network_of


def _kept(job: Job) -> Callable[[Candidate], nn.Module | None]:
    def network_of(candidate: Candidate) -> nn.Module | None:
        kept = job.kept_weights(candidate)
        if kept is None:
            return None
        network = _placed(job.run_inputs.space.build(candidate.network))
        network.load_state_dict(kept)
        return network

    return network_of


def _placed(network: nn.Module) -> nn.Module:
    network.to(working_device(), memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network
