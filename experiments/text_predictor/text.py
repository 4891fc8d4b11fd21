"""Latency of any network from the text of its operators, with a vocabulary that has no gaps.

As `hwnas.predictors.features.sequence`, after "ML-driven Hardware Cost Model for MLIR" (arXiv
2302.11405, 2023), a network is a sequence of operators, read by one-dimensional convolutions. There
the words are those of the known networks. Here an operator is a set of pieces: its kind, the words
and trigrams of its name, and the logarithms of its sizes in buckets, fine and coarse. Each piece is
hashed to one of a fixed number of embeddings (Weinberger et al., "Feature Hashing for Large Scale
Multitask Learning", ICML 2009), so that an unseen operator shares pieces with known ones.

Shapes: N networks, T operators of the longest network, V distinct operators, P pieces, W the width.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.search_spaces import NetworkOperator, OperatorSignature, Workload

__all__ = ["TextPredictor", "pieces_of"]

_EMBEDDINGS, _WIDTH = 2048, 32
_STEPS, _BATCH, _RATE, _DECAY = 600, 32, 3e-3, 1e-2
_FINE, _COARSE = 2.0, 0.5  # buckets for each factor of 2


def pieces_of(operator: NetworkOperator, workload: Workload) -> tuple[str, ...]:
    """Return the pieces of one operator, without those that it has twice."""
    step = OperatorSignature.of(operator, workload)
    words = re.findall(r"[a-z]+", operator.name.lower())
    trigrams = [f"^{w}$"[i : i + 3] for w in words for i in range(len(w))]
    sizes = {
        "macs": step.macs,
        "read": step.read_bytes,
        "written": step.written_bytes,
        "weights": step.weight_bytes,
    }
    buckets = [
        f"{name} {scale} {round(scale * math.log2(1 + size))}"
        for name, size in sizes.items()
        for scale in (_FINE, _COARSE)
    ]
    found = [f"kind {step.kind}", f"kernel {step.kernel_size}", f"stride {step.stride}"]
    return tuple(dict.fromkeys([*found, f"dead {step.dead}", *words, *trigrams, *buckets]))


def _sentences(workloads: Sequence[Workload]) -> tuple[Tensor, Tensor]:
    """Return the operators of networks (N, T), from 1, and the hashed pieces of each (V + 1, P)."""
    words: dict[tuple[str, ...], int] = {}
    rows = [
        [
            words.setdefault(pieces_of(each, workload), len(words) + 1)
            for each in workload.operators
            if not each.folded
        ]
        for workload in workloads
    ]
    tokens = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for token, row in zip(tokens, rows, strict=True):
        token[: len(row)] = row
    hashed = np.zeros((len(words) + 1, max(map(len, words))), dtype=np.int64)
    for pieces, place in words.items():
        places = [1 + zlib.crc32(piece.encode()) % (_EMBEDDINGS - 1) for piece in pieces]
        hashed[place, : len(places)] = places
    return torch.from_numpy(tokens), torch.from_numpy(hashed)


class _Reader(nn.Module):
    """Encoder of operators and their order, with a head that gives one log cost."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = nn.Embedding(_EMBEDDINGS, _WIDTH, padding_idx=0)
        self.context = nn.ModuleList(nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1) for _ in range(2))
        self.amounts = nn.Linear(_WIDTH, _WIDTH)
        self.scale = nn.BatchNorm1d(_WIDTH, affine=False)
        self.head = nn.Linear(_WIDTH, 1)
        nn.init.normal_(self.pieces.weight, std=0.2)
        with torch.no_grad():
            self.pieces.weight[0] = 0

    def forward(self, tokens: Tensor, hashed: Tensor) -> Tensor:
        """Return the standardised log costs (B,) of tokens (B, T) with these pieces (V + 1, P).

        Each channel is the logarithm of a sum over operators, since their costs add up.
        """
        present = (tokens > 0)[:, None].float()
        hidden = nn.functional.embedding(tokens, self.pieces(hashed).sum(1)).transpose(1, 2)
        for layer in self.context:
            hidden = (hidden + layer(hidden).relu()) * present
        silent = torch.where(tokens > 0, 0.0, -math.inf)[..., None]
        amounts = (self.amounts(hidden.transpose(1, 2)) + silent).logsumexp(1)
        found: Tensor = self.head(self.scale(amounts))[:, 0]
        return found


@dataclass(frozen=True, eq=False)
class TextPredictor:
    """Predictor that has read measured networks.

    Attributes:
        reader: Trained encoder.
        level: Mean of the log latencies that it was trained on.
        spread: Their standard deviation.
    """

    reader: _Reader
    level: float
    spread: float

    @classmethod
    def fit(cls, workloads: Sequence[Workload], latencies_ms: Numbers, seed: int) -> TextPredictor:
        """Train on N networks; the same networks and seed give the same predictor.

        Args:
            workloads: Networks, such as those of `read_workload` for ONNX files.
            latencies_ms: Their latencies, of shape (N,).
            seed: Seed of the initial weights and of the order of training.
        """
        logs = np.log(latencies_ms)
        level, spread = float(logs.mean()), max(float(logs.std()), 1e-9)
        targets = torch.from_numpy(((logs - level) / spread).astype(np.float32))
        tokens, hashed = _sentences(workloads)
        rng = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            reader = _Reader()
            optimiser = torch.optim.AdamW(reader.parameters(), lr=_RATE, weight_decay=_DECAY)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_STEPS)
            for _ in range(_STEPS):
                rows = rng.choice(len(tokens), size=min(_BATCH, len(tokens)), replace=False)
                loss = nn.functional.mse_loss(reader(tokens[rows], hashed), targets[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
                optimiser.step()
                schedule.step()
        reader.eval()
        return cls(reader, level, spread)

    def predict(self, workloads: Sequence[Workload]) -> Numbers:
        """Return the milliseconds of N networks, of shape (N,)."""
        with torch.no_grad():
            found = self.reader(*_sentences(workloads)).numpy().astype(np.float64)
        milliseconds: Numbers = np.exp(self.level + self.spread * found)
        return milliseconds
