"""Functions and an evaluator that report the Ray node on which they run."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate
from own_parts import EvenDials


def quick() -> int:
    """Return a number that identifies the node, 0 without Ray."""
    import ray

    return number_of(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else 0


def number_of(node_id: str) -> int:
    return zlib.crc32(node_id.encode())


def process_of(shared: None) -> int:
    return quick()


@dataclass
class Where(EvenDials):
    """Evaluator that takes a while, until the file `hurry` exists."""

    hurry: Path | None = None

    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        if self.hurry is None or not self.hurry.exists():
            time.sleep(0.3)
        found = super().evaluate(candidate, fidelity)
        return replace(found, standard_errors={"accuracy": 0.01, "node": float(quick())})
