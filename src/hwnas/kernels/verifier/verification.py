"""From a file with a kernel to a verdict."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from random import Random

from hwnas.kernels.catalogue import OPERATORS
from hwnas.kernels.verifier.calls import Outcome
from hwnas.kernels.verifier.candidate import Candidate, read_candidate, read_rules
from hwnas.kernels.verifier.checks import CHECKS
from hwnas.kernels.verifier.judging import Result
from hwnas.kernels.verifier.nursery import Limits, Nursery
from hwnas.kernels.verifier.plan import Trial, plan
from hwnas.kernels.verifier.specification import OfFile, OfOperator, Specification, answers_of
from hwnas.kernels.verifier.verdict import Check, Verdict

__all__ = ["verify"]

_DEATHS = 8  # after which a kernel is not tried any more


def verify(
    source: str,
    reference: Path | None = None,
    *,
    seed: int | None = None,
    limits: Limits | None = None,
    nursery: Nursery | None = None,
) -> Verdict:
    """Check a kernel that may be wrong in any way, or made to look right.

    Args:
        source: A file with a function ``run``, or the name of an operator of hwnas.
        reference: A file with ``reference``, ``inputs``, ``sizes`` and ``dtypes`` that is trusted;
            if None the kernel's file names an operator or has these itself.
        seed: Of all random inputs; a fresh one, which nobody can know, if None.
        limits: Of the kernel's processes.
        nursery: That makes these, to be shared by many calls; one of its own if None.

    Raises:
        ConfigError: The file, or what is in it, is missing or no Python; or it cannot be imported.
        KernelError: The reference, or the inputs, are none.
        DeviceError: No process can be made.
    """
    candidate = read_candidate(source)
    seed = secrets.randbits(62) if seed is None else seed
    limits = limits or Limits()
    with contextlib.ExitStack() as stack:
        nursery = nursery or stack.enter_context(Nursery())
        specification = _specification(candidate, reference, nursery, limits)
        trials = plan(specification, Random(seed), on_card=nursery.device.type != "cpu")
        outcomes = _outcomes(candidate, trials, nursery, limits)
        checks = (
            [Check("loads", "failed", outcomes)]
            if isinstance(outcomes, str)
            else _checks(specification, trials, outcomes)
        )
    interpreted = nursery.device.type == "cpu"
    return Verdict(source, str(nursery.device), interpreted, seed, tuple(checks))


def _specification(
    candidate: Candidate, reference: Path | None, nursery: Nursery, limits: Limits
) -> Specification:
    if reference is None and candidate.operator is not None:
        return OfOperator(OPERATORS[candidate.operator])
    path = reference or candidate.path
    assert path is not None
    return OfFile(read_rules(path), nursery, limits)


def _outcomes(
    candidate: Candidate, trials: Sequence[Trial], nursery: Nursery, limits: Limits
) -> list[Outcome] | str:
    """What came of the calls, as far as they were made; or why the file cannot be imported."""
    header = {"role": "calls", "operator": candidate.operator}
    outcomes: list[Outcome] = []
    deaths = 0
    while len(outcomes) < len(trials):
        parts = [trial.call.message() for trial in trials[len(outcomes) :]]
        ended = nursery.job(header, parts, candidate.path, limits)
        if candidate.path is not None and not ended.told:
            return f"while it was imported: {ended.how}"
        told = answers_of(ended, candidate.name) if candidate.path else ended.told
        outcomes += [Outcome.received(*each) for each in told[: len(parts)]]
        if len(outcomes) == len(trials):
            break
        outcomes.append(Outcome(error=ended.how or "it ended early", died=True, hung=ended.hung))
        deaths += 1
        if ended.hung or deaths == _DEATHS:
            break
    return outcomes


def _checks(
    specification: Specification, trials: Sequence[Trial], outcomes: Sequence[Outcome]
) -> list[Check]:
    """Judge; only now is the truth computed, once for each question."""
    made = list(zip(trials, outcomes, strict=False))
    questions = list({id(trial.question): trial.question for trial, _ in made}.values())
    truths = specification.truths([(question.inputs, question.dtype) for question in questions])
    by_question = {id(q): truth for q, truth in zip(questions, truths, strict=True)}
    results = [
        Result(trial, outcome, truth)
        for trial, outcome in made
        if (truth := by_question[id(trial.question)]) is not None
    ]
    return [check(results) for check in CHECKS]
