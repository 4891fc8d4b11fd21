"""Network with attention within and across groups of characteristics, for log costs.

After NCPP (Liu et al., "Towards CPU Performance Prediction: New Challenge Benchmark Dataset and
Novel Approach", arXiv 2407.03385, 2024): the characteristics of a device fall into groups, each
group is encoded on its own, and attention across the groups precedes the head. The workload is one
more group. There are two departures. Attention within a group stands in for NCPP's convolutions
over the list of its characteristics, whose order means nothing here. The network predicts the
difference of a log cost from the mean over known devices, which is one more characteristic of the
workload; otherwise it would know less of a network than the methods that mix known devices.

Shapes: B pairs of a network and a device, C characteristics of a group, G groups, W the width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.predictors.models.gaussian_process import Numbers

__all__ = ["predict_by_attention"]

_WIDTH, _HEADS = 16, 2
_STEPS, _BATCH, _RATE, _DECAY = 500, 128, 3e-3, 1e-2


class _Group(nn.Module):
    """Encoder of one group: a token for each characteristic, attention among them, their mean."""

    def __init__(self, characteristics: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.3 * torch.randn(characteristics, _WIDTH))
        self.shift = nn.Parameter(0.3 * torch.randn(characteristics, _WIDTH))
        self.attention = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        """Return the code (B, W) of the values (B, C) of a group."""
        tokens = values[..., None] * self.scale + self.shift
        found: Tensor = (tokens + self.attention(tokens, tokens, tokens)[0]).mean(1)
        return found


class _GroupAttention(nn.Module):
    """Codes of all groups, attention across them, and a head that gives one number."""

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(groups)
        self.groups = nn.ModuleList(_Group(size) for size in groups)
        self.norm = nn.LayerNorm(_WIDTH)
        self.across = nn.MultiheadAttention(_WIDTH, _HEADS, batch_first=True)
        self.head = nn.Sequential(
            nn.Linear(len(groups) * _WIDTH, 2 * _WIDTH), nn.ReLU(), nn.Linear(2 * _WIDTH, 1)
        )

    def forward(self, values: Tensor) -> Tensor:
        """Return the standardised differences (B,) for all characteristics, group by group."""
        parts = values.split(self.sizes, 1)
        codes = torch.stack([g(part) for g, part in zip(self.groups, parts, strict=True)], 1)
        normed = self.norm(codes)
        codes = codes + self.across(normed, normed, normed)[0]
        found: Tensor = self.head(codes.flatten(1))[:, 0]
        return found


def predict_by_attention(
    devices: Numbers,
    groups: Sequence[int],
    new: Numbers,
    networks: tuple[Numbers, Numbers],
    logs: tuple[Numbers, Numbers],
    seed: int,
) -> Numbers:
    """Train on the known devices, and return the log costs of M networks on new devices, (M, E).

    Args:
        devices: Descriptions of the known devices, of shape (K, D).
        groups: Sizes of the groups of the D characteristics, in their order.
        new: Descriptions of the new devices, of shape (E, D).
        networks: Features of the N known and of the M asked networks, (N, F) and (M, F).
        logs: Log costs on the known devices of the known and of the asked networks, (N, K) and
            (M, K).
        seed: Seed of the initial weights and of the order of training.
    """
    centre, spread = devices.mean(0), np.maximum(devices.std(0), 1e-6)
    known = (devices - centre) / spread
    asked = (np.clip(new, devices.min(0), devices.max(0)) - centre) / spread
    workload = [np.column_stack([f, mean.mean(1)]) for f, mean in zip(networks, logs, strict=True)]
    middle, range_ = workload[0].mean(0), np.maximum(workload[0].std(0), 1e-6)
    seen, queried = ((each - middle) / range_ for each in workload)
    targets = logs[0] - logs[0].mean(1, keepdims=True)
    level = float(targets.std())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _GroupAttention([*groups, seen.shape[1]])
        _train(network, known, seen, targets / level, np.random.default_rng(seed))
    with torch.no_grad():
        found = [network(_pairs(device, queried)).numpy() for device in asked]
    return logs[1].mean(1)[:, None] + level * np.array(found, dtype=np.float64).T


def _pairs(device: Numbers, networks: Numbers) -> Tensor:
    tiled = np.broadcast_to(device, (len(networks), device.shape[-1]))
    return torch.from_numpy(np.hstack([tiled, networks]).astype(np.float32))


def _train(
    network: _GroupAttention,
    devices: Numbers,
    networks: Numbers,
    targets: Numbers,
    rng: np.random.Generator,
) -> None:
    """Fit the network to standardised differences, of shape (N, K)."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_STEPS)
    for _ in range(_STEPS):
        rows = rng.integers(len(networks), size=_BATCH)
        places = rng.integers(len(devices), size=_BATCH)
        wanted = torch.from_numpy(targets[rows, places].astype(np.float32))
        loss = nn.functional.mse_loss(network(_pairs(devices[places], networks[rows])), wanted)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    network.eval()
