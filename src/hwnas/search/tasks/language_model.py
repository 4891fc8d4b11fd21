"""Language modelling: the next byte of a text is predicted from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, Preprocessing
from hwnas.deploy.text import BYTE_NAMES
from hwnas.errors import DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.tokens import NO_TOKEN, TOKENS
from hwnas.search.tasks.task import Metric, check_metrics

__all__ = ["PLUGINS", "LanguageModel", "language_model"]

_UNITS = {"perplexity": "of a byte", "bits_per_byte": "bits", "next_byte_accuracy": "fraction"}
_BEST = {"next_byte_accuracy": "maximize"}


@dataclass(frozen=True)
class LanguageModel:
    """Language modelling task: outputs (N, 255, 1, T) are logits of the byte after each of T bytes.

    Metrics are means over all bytes of a split: perplexity is exp(H) for the cross-entropy H in
    nats (Jelinek et al., JASA 1977), ``bits_per_byte`` is H / log 2, ``next_byte_accuracy`` the
    share of bytes that are the most probable one.

    Attributes:
        preprocessing: Preprocessing at the length of the data's windows, which keeps bytes as they
            are.
        metric_names: Names of the metrics; training reports the first.

    Raises:
        ConfigError: A metric is unknown, or named twice.
    """

    preprocessing: Preprocessing
    metric_names: tuple[str, ...] = ("perplexity", "bits_per_byte")

    def __post_init__(self) -> None:
        check_metrics(self.metric_names, _UNITS)

    @property
    def name(self) -> str:
        """Name of the task, ``"language-model"``."""
        return "language-model"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of the task, in the order of their names."""
        return tuple(
            Metric(name, "maximize" if name in _BEST else "minimize", _UNITS[name])
            for name in self.metric_names
        )

    @property
    def outputs(self) -> int:
        """Number of tokens, 255: the bytes from 0 to 254."""
        return TOKENS

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: a logit for each byte that may follow each byte."""
        return OutputMeaning("next_byte_scores", BYTE_NAMES)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats: the mean over bytes."""
        return self._entropies(outputs, targets).sum() / _count(targets).sum().clamp(min=1)

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return KL(teacher || network) of the next byte, in nats: the mean over bytes."""
        log_q = outputs.float().log_softmax(1)
        log_p = teacher_outputs.detach().float().log_softmax(1)
        total = functional.kl_div(log_q, log_p, reduction="sum", log_target=True)
        return total / log_q[:, 0].numel()

    def _entropies(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of each byte, (N, T); 0 where there is none."""
        return functional.cross_entropy(
            outputs.float().squeeze(2), targets.long(), ignore_index=NO_TOKEN, reduction="none"
        )

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the sums over the bytes of each window, (N,): entropy, right ones, and all."""
        right = (outputs.squeeze(2).argmax(1) == targets) & (targets != NO_TOKEN)
        return {
            "nats": self._entropies(outputs, targets).sum(1),
            "right": right.sum(1).float(),
            "bytes": _count(targets).sum(1).float(),
        }

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the whole split."""
        nats = means["nats"] / means["bytes"]
        values = {
            "perplexity": nats.exp(),
            "bits_per_byte": nats / math.log(2),
            "next_byte_accuracy": means["right"] / means["bytes"],
        }
        return {name: values[name] for name in self.metric_names}


def _count(targets: Tensor) -> Tensor:
    """Return a mask of the bytes that count, (N, T)."""
    return torch.ne(targets, NO_TOKEN)


def language_model(
    data: ImageData, metrics: Sequence[str] = ("perplexity", "bits_per_byte")
) -> LanguageModel:
    """Return the language modelling task of a data set.

    Args:
        data: Data set of text, such as that of ``"text:PATH"``.
        metrics: Names of the metrics; see `LanguageModel`.

    Raises:
        ConfigError: A metric is unknown, or named twice.
        DataError: The data are no text.
    """
    if data.kind != "tokens":
        raise DataError(
            f"task language-model needs text, but the targets are {data.kind}; set data.source = "
            '"text:PATH", or name another task'
        )
    plain = replace(data.preprocessing, mean=(0.0,), std=(1 / 255,))
    return LanguageModel(plain, tuple(metrics))


PLUGINS = (
    Plugin(
        "task",
        "language-model",
        language_model,
        "The next byte of a text; metrics perplexity and bits per byte",
    ),
)
