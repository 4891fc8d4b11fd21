"""Experiments that compare, for each of several trained models, one side with others."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from experiments.over_cases import mean_over_cases
from experiments.record import Row
from experiments.setting import Setting

__all__ = ["add_model_options", "answer_by_model"]


def add_model_options(parser: argparse.ArgumentParser, models: Iterable[str]) -> None:
    """Add the options for the models to compare, and for the time that they are trained before."""
    names = list(models)
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--pretraining", type=float, default=8.0, help="minutes of pretraining on one core"
    )


def answer_by_model(
    setting: Setting,
    models: Sequence[str],
    every: Iterable[str],
    ours: str,
    pretrain: Callable[[Sequence[str], int], None],
    observe: Callable[[str, int], list[Row]],
    judge: Callable[[list[Row], str, int], list[Row]],
    has_all: Callable[[str, int], bool] | None = None,
) -> None:
    """Observe and compare the models of each seed, and record the answers and their means.

    Args:
        setting: Setting of the experiment.
        models: Models of this call.
        every: All models, over which means are taken once each has an answer.
        ours: Side whose answers have subjects ``"MODEL OURS / OTHER"``.
        pretrain: Function that trains the models of a seed that are not observed yet.
        observe: Function from a model and a seed to the rows of all sides.
        judge: Function from these rows, the model and the seed to the answers.
        has_all: Function that returns whether a model is observed; if None, any row suffices.
    """
    groups = {f"all {ours} /": [f"{model} {ours} /" for model in every]}
    for seed in setting.seeds:
        missing = [
            model
            for model in models
            if not (has_all(model, seed) if has_all else setting.observed(model, seed))
        ]
        if missing:
            pretrain(missing, seed)
        for model in missing:
            setting.observations.put(observe(model, seed))
        answers = [
            row for model in models for row in judge(setting.observed(model, seed), model, seed)
        ]
        means = [replace(row, seed=seed) for row in mean_over_cases(answers, groups)]
        setting.answer([*answers, *means])
    setting.show()
