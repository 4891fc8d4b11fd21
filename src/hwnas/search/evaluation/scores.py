"""Store of all evaluations of a run, so that none is made twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from hwnas.atomic import storage_errors
from hwnas.errors import RunError
from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate

__all__ = ["ScoreStore"]


class ScoreStore:
    """Store of evaluations by candidate, evaluator and fidelity, in an append-only JSON Lines file.

    An incomplete last line, left by a killed process, is dropped.

    Args:
        path: Path of the file; None keeps the evaluations in memory only.

    Raises:
        RunError: The file cannot be read or is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._scores: dict[tuple[str, str, str], Evaluation] = {}
        if path is not None and path.exists():
            self._read(path)

    def __len__(self) -> int:
        return len(self._scores)

    def __iter__(self) -> Iterator[Evaluation]:
        return iter(self._scores.values())

    def get(self, candidate: Candidate, evaluator: str, fidelity: Fidelity) -> Evaluation | None:
        """Return the evaluation of a candidate; None if it was not made yet."""
        return self._scores.get((candidate.id, evaluator, fidelity.key))

    def put(
        self, candidate: Candidate, evaluator: str, fidelity: Fidelity, evaluation: Evaluation
    ) -> None:
        """Store an evaluation; it is in the file when this returns.

        Raises:
            StorageError: The file cannot be written.
        """
        key = candidate.id, evaluator, fidelity.key
        self._scores[key] = evaluation
        if self._path is not None:
            line = json.dumps({"key": key, "evaluation": evaluation.to_json()}) + "\n"
            with storage_errors(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(line)

    def _read(self, path: Path) -> None:
        try:
            whole, _, rest = path.read_bytes().rpartition(b"\n")
        except OSError as error:
            raise RunError(
                f"{path} cannot be read ({error.strerror}); repair or remove it"
            ) from error
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                row = json.loads(line)
                candidate, evaluator, fidelity = row["key"]
                evaluation = Evaluation.from_json(row["evaluation"])
            except (ValueError, KeyError, TypeError) as error:
                raise RunError(
                    f"{path} is damaged at line {number} ({error}); remove this line to keep all "
                    "others"
                ) from error
            self._scores[candidate, evaluator, fidelity] = evaluation
        if rest:  # an incomplete last line: the next append must start on a new line
            with storage_errors(path), path.open("r+b") as file:
                file.truncate(len(whole) + 1 if whole else 0)
