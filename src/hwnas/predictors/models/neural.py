"""Neural predictor that is conditioned on a device and adapts to it by gradient steps.

After HELP (Lee et al., "Hardware-adaptive Efficient Latency Prediction for NAS via
Meta-Learning", NeurIPS 2021): a device is embedded by the costs of some networks on it, the
predictor is conditioned on the embedding, and both are trained such that a few gradient steps on
those measurements make a good predictor (MAML of Finn et al., ICML 2017, with learned step sizes).
There are two departures.
The measurements that embed the device are also those that the predictor adapts to, so that ten
samples are ten measurements, not twenty. Each option's embedding is combined with the device's
before all are summed, as in NASFLAT (Akhauri and Abdelfattah, "On Latency Predictors for Neural
Architecture Search", MLSys 2024).

Shapes: B rows of a support or query set, L positions, W the width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hwnas.predictors.features.blocks import BlockScaling, blocks_of_codes
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.methods import Forecast, KnownDevices, Measure, Rows

__all__ = ["Neural", "help_like"]

_WIDTH = 32
_EPISODES = 1500
_QUERIES = 128
_SUPPORT = (8, 24)  # least and largest number of rows of a support set
_INNER_STEPS = 2
_ADAPTATION_STEPS = 10


def help_like(sources: KnownDevices) -> Neural:
    """Meta-train a predictor on the known devices; the same sources give the same predictor."""
    blocks = blocks_of_codes(sources.space, sources.codes)
    features = np.hstack(
        [BlockScaling.over(b[sources.pool])(b) for name, b in blocks.items() if name != "places"]
    )
    inputs = _Inputs(torch.from_numpy(sources.codes), torch.from_numpy(features.astype(np.float32)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = _Conditioned(sources.space.options, features.shape[1])
        errors = _meta_train(network, inputs, sources)
    return Neural(network, inputs, errors)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of all networks: codes (N, L) and features (N, F)."""

    codes: Tensor
    features: Tensor

    def rows(self, index: Rows | Tensor) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(index)
        return self.codes[chosen], self.features[chosen]


class _Conditioned(nn.Module):
    """Network that predicts standardised log costs on a device from a few measurements on it."""

    def __init__(self, options: tuple[int, ...], features: int) -> None:
        super().__init__()
        starts = np.cumsum([0, *options])[:-1]
        self.register_buffer("starts", torch.from_numpy(starts))
        self.starts: Tensor
        self.options = nn.Embedding(sum(options), _WIDTH)
        self.features = nn.Linear(features, _WIDTH)
        self.measured = nn.Sequential(nn.Linear(2 * _WIDTH + 1, _WIDTH), nn.ReLU())
        self.device = nn.Linear(_WIDTH, _WIDTH)
        self.on_device = nn.Sequential(nn.Linear(2 * _WIDTH, _WIDTH), nn.ReLU())
        self.head = nn.Sequential(
            nn.Linear(3 * _WIDTH, 2 * _WIDTH), nn.ReLU(), nn.Linear(2 * _WIDTH, 1)
        )
        self.log_rates = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(torch.tensor(-4.0)) for name in self.adapted()}
        )

    def adapted(self) -> dict[str, Tensor]:
        """Return the parameters that gradient steps change for a device."""
        names = ("on_device", "head", "features")
        return {n: p for n, p in self.named_parameters() if n.startswith(names)}

    def embed(self, codes: Tensor, features: Tensor, values: Tensor) -> Tensor:
        """Return a device's embedding (W,) from networks (B, L), (B, F) and their costs (B,)."""
        options = self.options(codes + self.starts).mean(1)
        joined = torch.cat([options, self.features(features), values[:, None]], 1)
        found: Tensor = self.device(self.measured(joined).mean(0))
        return found

    def forward(self, codes: Tensor, features: Tensor, device: Tensor) -> Tensor:
        """Return the standardised log costs of networks on an embedded device, of shape (B,)."""
        options = self.options(codes + self.starts)
        places = torch.cat([options, device.expand_as(options)], 2)
        network = torch.cat(
            [
                self.on_device(places).mean(1),
                self.features(features),
                device.expand(len(codes), -1),
            ],
            1,
        )
        found: Tensor = self.head(network)[:, 0]
        return found

    def adapt(
        self, codes: Tensor, features: Tensor, values: Tensor, steps: int, training: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a device's embedding, and parameters after gradient steps on its measurements."""
        device = self.embed(codes, features, values)
        changed = self.adapted()
        for _ in range(steps):
            found = functional_call(self, changed, (codes, features, device))
            loss = nn.functional.mse_loss(found, values)
            gradients = torch.autograd.grad(loss, tuple(changed.values()), create_graph=training)
            changed = {
                name: parameter - self.log_rates[name.replace(".", "_")].exp() * gradient
                for (name, parameter), gradient in zip(changed.items(), gradients, strict=True)
            }
        return device, changed


def _meta_train(network: _Conditioned, inputs: _Inputs, sources: KnownDevices) -> Numbers:
    """Train on episodes, each a device with a support and a query set.

    Returns:
        Absolute errors of the last tenth of the episodes, in standard deviations of the support.
    """
    rng = np.random.default_rng(0)
    logs = np.log(sources.costs).astype(np.float32)
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _EPISODES)
    most = min(_SUPPORT[1], len(sources.pool) // 2)
    errors = []
    for episode in range(_EPISODES):
        order = rng.permutation(len(sources.pool))
        size = int(rng.integers(min(_SUPPORT[0], most), most + 1))
        support, query = order[:size], order[size : size + _QUERIES]
        values = logs[:, rng.integers(logs.shape[1])]
        centre, spread = values[support].mean(), max(float(values[support].std()), 1e-3)
        targets = torch.from_numpy((values - centre) / spread)
        device, changed = network.adapt(
            *inputs.rows(sources.pool[support]), targets[support], _INNER_STEPS, training=True
        )
        found = functional_call(network, changed, (*inputs.rows(sources.pool[query]), device))
        loss = nn.functional.mse_loss(found, targets[query])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if episode >= 0.9 * _EPISODES:
            errors.append((found - targets[query]).abs().detach().numpy())
    return np.concatenate(errors)


@dataclass(frozen=True)
class Neural:
    """Neural predictor after meta-training on the known devices.

    Attributes:
        network: Meta-trained network.
        inputs: Inputs of all networks.
        errors: Absolute errors on known devices, in standard deviations of their samples.
    """

    network: _Conditioned
    inputs: _Inputs
    errors: Numbers

    def predict(
        self,
        offered: Rows,
        queries: Rows,
        samples: int,
        measure: Measure,
        rng: np.random.Generator,
    ) -> Forecast:
        """Measure random rows of the offered ones, adapt, then predict the queries."""
        rows = rng.choice(offered, size=min(samples, len(offered)), replace=False)
        logs = np.log([measure(int(row)).cost for row in rows])
        centre, spread = logs.mean(), max(float(logs.std()), 1e-3)
        values = torch.from_numpy(((logs - centre) / spread).astype(np.float32))
        device, changed = self.network.adapt(
            *self.inputs.rows(rows), values, _ADAPTATION_STEPS, training=False
        )
        with torch.no_grad():
            found = self._run(changed, queries, device).numpy()
        mean = centre + spread * found.astype(np.float64)
        reach = spread * float(np.quantile(self.errors, 0.9))
        return Forecast(np.exp(mean), np.exp(mean - reach), np.exp(mean + reach))

    def _run(self, changed: Mapping[str, Tensor], rows: Rows, device: Tensor) -> Tensor:
        found: Tensor = functional_call(
            self.network, dict(changed), (*self.inputs.rows(rows), device)
        )
        return found
