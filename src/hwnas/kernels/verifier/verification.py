"""Verification of a kernel, from its file to a verdict."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from hwnas.errors import KernelError
from hwnas.kernels.operators.registry import OPERATORS
from hwnas.kernels.verifier.calls import CallOutcome, Process
from hwnas.kernels.verifier.candidate import (
    KernelUnderTest,
    parsed,
    read_candidate,
    read_rules,
    refuse_signature,
)
from hwnas.kernels.verifier.checks import CHECKS
from hwnas.kernels.verifier.fork_server import ForkServer, JobLimits
from hwnas.kernels.verifier.judging import Result
from hwnas.kernels.verifier.plan import LAST, LATE, VerificationCall, plan
from hwnas.kernels.verifier.specification import (
    FileSpecification,
    OperatorSpecification,
    Specification,
    answers_of,
)
from hwnas.kernels.verifier.suspicious import suspicious
from hwnas.kernels.verifier.verdict import KernelCheck, KernelVerdict

__all__ = ["verify"]

_DEATHS = 8  # crashes after which a kernel is not called any more
_CALLS = 2000
_PATIENCE = 4
_PROCESSES: tuple[Process, ...] = ("plain", "programs", "memory")
_QUICK_SECONDS = 0.5  # limit of a large call, or of a hundred calls, for more calls to be made


def verify(
    source: str,
    reference: Path | None = None,
    *,
    seed: int | None = None,
    limits: JobLimits | None = None,
    fork_server: ForkServer | None = None,
) -> KernelVerdict:
    """Verify a kernel that may be wrong in any way, or made to look right.

    Args:
        source: File with a function ``run``, or name of an operator of hwnas.
        reference: Trusted file with ``reference``, ``inputs``, ``sizes`` and ``dtypes``; if None,
            the kernel's file names an operator or has these itself.
        seed: Seed of all random inputs; if None, a fresh one that nobody can know.
        limits: Limits of the kernel's processes.
        fork_server: Fork server of these processes, which many calls can share; if None, a new one.

    Raises:
        ConfigError: The file or something in it is missing, is not Python or cannot be imported.
        KernelError: The reference or the inputs are not usable.
        DeviceError: No process can be made.
    """
    candidate = read_candidate(source)
    seed = secrets.randbits(62) if seed is None else seed
    limits = limits or JobLimits()
    with contextlib.ExitStack() as stack:
        fork_server = fork_server or stack.enter_context(ForkServer())
        specification = _specification(candidate, reference, fork_server, limits)
        on_gpu = fork_server.device.type != "cpu"
        calls = 0 if candidate.path is None else _CALLS
        trials = plan(specification, Random(seed), on_gpu=on_gpu, calls=calls)
        if candidate.path is None:  # hwnas's own operators do not try to cheat
            trials = [trial for trial in trials if not trial.plain or trial.aim == "options"]
        refuse_signature(candidate, list(trials[0].question.inputs))
        process = _Process(candidate, fork_server, limits)
        made: list[tuple[VerificationCall, CallOutcome]] = []
        checks: list[KernelCheck] = []
        for stage in range(3):  # slow calls are made only of a kernel that is right so far
            for name in _PROCESSES:
                asked = [t for t in trials if t.process == name and _stage(t) == stage]
                if stage == 2:
                    asked = _affordable(asked, made)
                if asked and process.unloadable is None:
                    outcomes = process.outcomes(asked, name, late=stage > 0)
                    made += zip(asked, outcomes, strict=False)
            if process.unloadable is not None:
                checks = [KernelCheck("loads", "failed", process.unloadable)]
                break
            checks = [*_checks(specification, made), _source(candidate), process.sandbox()]
            if any(check.status == "failed" for check in checks):
                break
    interpreted = fork_server.device.type == "cpu"
    return KernelVerdict(source, str(fork_server.device), interpreted, seed, tuple(checks))


def _stage(trial: VerificationCall) -> int:
    return 2 if trial.aim in LAST else int(trial.aim in LATE)


def _affordable(
    asked: Sequence[VerificationCall], made: Sequence[tuple[VerificationCall, CallOutcome]]
) -> list[VerificationCall]:
    """Return the calls for which a kernel is fast enough, judged by its calls so far."""

    def quick(*aims: str) -> bool:
        return all(o.seconds < _QUICK_SECONDS for trial, o in made if trial.aim in aims)

    return [trial for trial in asked if quick("large" if trial.aim == "largest" else "many")]


def _specification(
    candidate: KernelUnderTest, reference: Path | None, fork_server: ForkServer, limits: JobLimits
) -> Specification:
    if reference is None and candidate.operator is not None:
        return OperatorSpecification(OPERATORS[candidate.operator])
    path = reference or candidate.path
    assert path is not None
    return FileSpecification(read_rules(path), fork_server, limits)


class _Process:
    """Processes of a kernel, and what the fork server observed of them.

    Attributes:
        unloadable: Reason why the kernel's file cannot be imported, or None.
    """

    def __init__(
        self, candidate: KernelUnderTest, fork_server: ForkServer, limits: JobLimits
    ) -> None:
        self.unloadable: str | None = None
        self._candidate, self._fork_server, self._limits = candidate, fork_server, limits
        self._guard = fork_server.device.type == "cpu"
        self._refused: dict[str, None] = {}
        self._unguarded = "" if self._guard else "a GPU's driver makes calls of its own"

    def outcomes(
        self, trials: Sequence[VerificationCall], process: Process, *, late: bool
    ) -> list[CallOutcome]:
        """Make calls and return their outcomes, up to a timeout or too many crashes."""
        candidate = self._candidate
        header: dict[str, Any] = {
            "role": "calls",
            "operator": candidate.operator,
            "process": process,
        }
        header |= {"guard": self._guard, "threads": process != "plain"}
        header |= {"readable": [str(path) for path in candidate.beside]}
        limits = self._limits
        if late:  # sizes are many times larger
            limits = replace(limits, seconds=_PATIENCE * limits.seconds)
        outcomes: list[CallOutcome] = []
        deaths = 0
        while len(outcomes) < len(trials):
            parts = [trial.call.message() for trial in trials[len(outcomes) :]]
            ended = self._fork_server.job(header, parts, candidate.path, limits)
            self._refused |= dict.fromkeys(ended.refused)
            self._unguarded = self._unguarded or ended.unguarded
            if not ended.answers:
                self.unloadable = f"while it was imported: {ended.how}"
                return []
            answers = answers_of(ended, candidate.name)
            outcomes += [
                replace(CallOutcome.received(*each), seconds=seconds)
                for each, seconds in zip(answers, ended.seconds[1:], strict=False)
            ]
            if len(outcomes) == len(trials):
                break
            outcomes.append(
                CallOutcome(
                    error=ended.how or "the process ended early", died=True, hung=ended.hung
                )
            )
            deaths += 1
            if ended.hung or deaths == _DEATHS:
                break
        return outcomes

    def sandbox(self) -> KernelCheck:
        """Return the check that the kernel made no forbidden system calls."""
        if self._refused:
            return KernelCheck("sandbox", "failed", "; ".join(list(self._refused)[:4]))
        if self._unguarded:
            return KernelCheck(
                "sandbox", "not applicable", f"system calls were not supervised: {self._unguarded}"
            )
        return KernelCheck("sandbox", "passed", "it opened no files and started no processes")


def _source(candidate: KernelUnderTest) -> KernelCheck:
    """Return the check that a file and its local imports use only what kernels need."""
    if candidate.tree is None or candidate.path is None:
        return KernelCheck("source", "not applicable", "it is an operator of hwnas")
    beside = [path.stem for path in candidate.beside]
    found = suspicious(candidate.tree, beside)
    for path in candidate.beside:
        found += [f"{path.name}: {text}" for text in suspicious(parsed(path), beside)]
    if found:
        return KernelCheck("source", "failed", "; ".join(found[:4]))
    return KernelCheck("source", "passed", "it uses only what kernels need")


def _checks(
    specification: Specification, made: Sequence[tuple[VerificationCall, CallOutcome]]
) -> list[KernelCheck]:
    """Return the results of all checks.

    Only now are the expected outputs computed, once for each question.
    """
    questions = list({id(trial.question): trial.question for trial, _ in made}.values())
    truths = specification.truths([(question.inputs, question.dtype) for question in questions])
    by_question = {id(q): truth for q, truth in zip(questions, truths, strict=True)}
    for trial, _ in made:
        if trial.aim in ("values", "first") and by_question[id(trial.question)] is None:
            raise KernelError(f"the reference raises an error for {trial.question}")
    results = [
        Result(trial, outcome, truth)
        for trial, outcome in made
        if (truth := by_question[id(trial.question)]) is not None
    ]
    return [check(results) for check in CHECKS]
