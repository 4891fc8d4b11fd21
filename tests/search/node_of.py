"""Functions and an evaluator that report the Ray node on which they run."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, replace

from hwnas.search.evaluation.scoring import Evaluation, Fidelity
from hwnas.search_spaces import Candidate
from own_parts import EvenDials


def quick() -> int:
    """Return a number that identifies the node, 0 without Ray."""
    import ray

    return (
        zlib.crc32(ray.get_runtime_context().get_node_id().encode()) if ray.is_initialized() else 0
    )


def process_of(shared: None) -> int:
    return quick()


@dataclass
class Where(EvenDials):
    def evaluate(self, candidate: Candidate, fidelity: Fidelity) -> Evaluation:
        time.sleep(0.3)
        found = super().evaluate(candidate, fidelity)
        return replace(found, standard_errors={"accuracy": 0.01, "node": float(quick())})
