"""Encoder of networks as sequences of operators, for a Gaussian process on its features.

After "ML-driven Hardware Cost Model for MLIR" (arXiv 2302.11405, 2023): operators are tokens, and
a stack of one-dimensional convolutions over their embeddings, pooled, predicts the cost of the
whole on hardware. There are three departures. A token's embedding is the sum of the embeddings of
its fields (in the paper, the operator and the shapes of its operands are words). All known devices
share the encoder. A new device has a Gaussian process on the encoder's features, as the default
method has on aggregated features.

Tokens are in the order of the space's positions, and within a position in the order of execution.
Equal operators of one position are one token with a count. FBNet's layers are therefore in order,
with stem and head at the end; an edge of NAS-Bench-201 stands for all cells, first stage first.

To find the prior and the widths of the intervals, each known device is treated as new. The encoder
was trained on these devices as well, so it is overconfident if a new device is unlike them.

Shapes: N networks, T tokens of the longest network, V distinct tokens, F fields, K known devices, W
the encoder's width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hwnas.errors import ConfigError
from hwnas.predictors.features.blocks import Blocks
from hwnas.predictors.models.gaussian_process import Numbers
from hwnas.predictors.models.methods import KnownDevices, Rows
from hwnas.predictors.models.transfer import Transfer, transfer_of
from hwnas.search_spaces import Assembly, OperatorSignature

__all__ = ["Text", "encoded_sequences", "sequence", "text_of"]

_WIDTH = 32
_STEPS = 600
_BATCH = 64
_RATE = 3e-3
_DECAY = 1e-2
_CHUNK = 512  # networks that are encoded at once, to limit memory
_BUCKETS = 2  # buckets of sizes per factor of 2


def sequence(sources: KnownDevices) -> Transfer:
    """Return the default method with the encoder of sequences instead of aggregated features."""
    return transfer_of(sources, encoded_sequences)


def encoded_sequences(sources: KnownDevices) -> Blocks:
    """Train the encoder on the known devices; the same sources give the same features.

    Raises:
        ConfigError: The operators of the table's networks are not known.
    """
    assembly = sources.space.parts(sources.codes)
    if assembly is None:
        raise ConfigError(
            f"method sequence needs the operators of the networks, but space {sources.space.name} "
            "has only integer codes. Name the space with --space, or choose another method"
        )
    text = text_of(assembly)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reader = _Reader(text.fields, len(sources.devices))
        _train(reader, text, sources.pool, np.log(sources.costs))
    return {"sequence": _read(reader, text)}


@dataclass(frozen=True)
class Text:
    """Networks as sequences of tokens.

    Attributes:
        tokens: Indices of tokens from 1, of shape (N, T); 0 pads behind the last one.
        fields: Values of each token's fields, counted from 0, of shape (V + 1, F).
    """

    tokens: Rows
    fields: Rows

    def rows(self, index: Rows) -> Tensor:
        """Return the tokens of some networks, without columns that are empty in all of them."""
        some = self.tokens[index]
        return torch.from_numpy(some[:, : max(int((some > 0).sum(1).max()), 1)])


def text_of(assembly: Assembly) -> Text:
    """Return networks as sequences of tokens; equal networks are equal rows."""
    vocabulary: dict[tuple[OperatorSignature, int], int] = {}
    columns = []
    for place, options in enumerate(assembly.parts):
        sentences = np.zeros((len(options), max(map(len, options))), dtype=np.int64)
        for sentence, part in zip(sentences, options, strict=True):
            found = [vocabulary.setdefault(each, len(vocabulary) + 1) for each in part.items()]
            sentence[: len(found)] = found
        columns.append(sentences[assembly.chosen[:, place]])
    tokens = np.hstack(columns)
    order = np.argsort(tokens == 0, axis=1, kind="stable")
    words = [_fields(step, count) for step, count in vocabulary]
    kinds = [sorted(set(column)) for column in zip(*words, strict=True)]
    indices = [[k.index(value) for k, value in zip(kinds, word, strict=True)] for word in words]
    fields = np.array([[0] * len(kinds), *indices])
    return Text(np.take_along_axis(tokens, order, 1), fields)


def _fields(step: OperatorSignature, count: int) -> tuple[str | int, ...]:
    """Return the fields of an operator; sizes are logarithms to the base 2, in buckets."""
    sizes = step.macs, step.read_bytes, step.written_bytes, step.weight_bytes, count
    buckets = (round(_BUCKETS * math.log2(1 + size)) for size in sizes)
    return step.kind, *buckets, step.kernel_size, step.stride, step.dead


class _Reader(nn.Module):
    """Encoder of networks, with a head that predicts standardised log costs on known devices."""

    def __init__(self, fields: Rows, devices: int) -> None:
        super().__init__()
        values = fields.max(0) + 1
        starts = np.cumsum([0, *values])[:-1]
        self.register_buffer("fields", torch.from_numpy(fields + starts))
        self.fields: Tensor
        self.embedding = nn.Embedding(int(values.sum()), _WIDTH)
        self.context = nn.ModuleList(nn.Conv1d(_WIDTH, _WIDTH, 3, padding=1) for _ in range(2))
        self.amounts = nn.Linear(_WIDTH, _WIDTH)
        self.scale = nn.BatchNorm1d(_WIDTH, affine=False)
        self.devices = nn.Linear(_WIDTH, devices)
        nn.init.normal_(self.embedding.weight, std=0.3)

    def encode(self, tokens: Tensor) -> Tensor:
        """Return the features of tokens (B, T), of shape (B, W).

        Each channel is the logarithm of a sum over tokens, since costs of operators add up.
        """
        present = (tokens > 0)[:, None].float()
        words = self.embedding(self.fields).sum(1)
        # Not words[tokens]: several threads add up its gradient in an arbitrary order.
        hidden = nn.functional.embedding(tokens, words).transpose(1, 2) * present
        for layer in self.context:
            hidden = (hidden + layer(hidden).relu()) * present
        amounts = self.amounts(hidden.transpose(1, 2))
        silent = torch.where(tokens > 0, 0.0, -math.inf)[..., None]
        found: Tensor = (amounts + silent).logsumexp(1)
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the standardised log costs of tokens (B, T), of shape (B, K)."""
        found: Tensor = self.devices(self.scale(self.encode(tokens)))
        return found


def _train(reader: _Reader, text: Text, pool: Rows, logs: Numbers) -> None:
    """Fit the encoder to the log costs on all known devices at once, (len(pool), K)."""
    rng = np.random.default_rng(0)
    spread = np.maximum(logs.std(0), 1e-9)
    targets = torch.from_numpy(((logs - logs.mean(0)) / spread).astype(np.float32))
    optimiser = torch.optim.AdamW(reader.parameters(), lr=_RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_STEPS)
    for _ in range(_STEPS):
        batch = rng.choice(len(pool), size=min(_BATCH, len(pool)), replace=False)
        loss = nn.functional.mse_loss(reader(text.rows(pool[batch])), targets[batch])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    reader.eval()


def _read(reader: _Reader, text: Text) -> Numbers:
    """Return the features of all networks, of shape (N, W)."""
    rows = np.arange(len(text.tokens))
    chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    with torch.no_grad():
        found = [reader.encode(text.rows(chunk)).numpy() for chunk in chunks]
    return np.concatenate(found).astype(np.float64)
