"""Distillation losses between a network and its teacher."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hwnas.deploy.io import at_size
from hwnas.errors import ConfigError
from hwnas.search.tasks.task import Task

__all__ = ["alpha_divergence", "distillation_loss"]

_ALPHAS = (-1.0, 1.0)
_CLIP = 5.0


def distillation_loss(task: Task, name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a distillation loss: ``"kl"`` for the task's, ``"alpha"`` for `alpha_divergence`.

    Raises:
        ConfigError: The loss compares class probabilities, and the task's outputs are none.
    """
    if name == "kl":
        return task.distillation_loss
    if task.meaning.kind not in ("class_scores", "pixel_class_scores"):
        raise ConfigError(
            f"train.distillation_loss is {name!r}, which compares probabilities of classes; task "
            f"{task.name} has none, so use 'kl', which selects the distillation loss of the task"
        )
    return alpha_divergence if task.meaning.kind == "class_scores" else _alpha_of_pixels


def _alpha_of_pixels(outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
    """Return the mean alpha-divergence over pixels, at the resolution of the teacher's outputs."""
    return alpha_divergence(at_size(outputs, teacher_outputs.shape[2:]), teacher_outputs)


def alpha_divergence(
    outputs: Tensor,
    teacher_outputs: Tensor,
    alphas: tuple[float, float] = _ALPHAS,
    clip: float = _CLIP,
) -> Tensor:
    """Return the larger of two alpha-divergences of each image or pixel, averaged over all.

    The loss is that of AlphaNet (Wang et al., ICML 2021). With p the teacher's probabilities and q
    the network's,

        D_a(p || q) = 1 / (a (a - 1)) * sum_i q_i [(p_i / q_i)^a - 1]

    (a = 1 is KL(p || q), a = 0 is KL(q || p)). A negative alpha penalises a network that is less
    certain than its teacher. A positive alpha penalises a network that is more certain. Each image
    therefore takes the larger of the two. The gradient is

        -1 / a * E_q[(p / q)^a * grad log q]

    whose weights (p / q)^a are clipped at 5, since they are unbounded. The returned value is that
    of the clipped divergence, and its gradient is the one above, which differs. Do not use the loss
    with an optimiser that compares values, such as a line search.

    Args:
        outputs: Logits of the network, (N, K) or (N, K, ...), classes second.
        teacher_outputs: Logits of the teacher, same shape; they get no gradient.
        alphas: Two alphas, one below and one above 0.
        clip: Upper bound of the weights.

    Returns:
        A scalar.
    """
    log_q = outputs.float().log_softmax(dim=1)
    log_p = teacher_outputs.detach().float().log_softmax(dim=1)
    low, high = (_one(log_p, log_q, alpha, clip) for alpha in alphas)
    larger = low[0] > high[0]
    value = torch.where(larger, low[0], high[0])
    surrogate = torch.where(larger, low[1], high[1])
    return (value + surrogate - surrogate.detach()).mean()


def _one(log_p: Tensor, log_q: Tensor, alpha: float, clip: float) -> tuple[Tensor, Tensor]:
    """Return the value without gradient, and a term whose gradient is that of the divergence."""
    q = log_q.detach().exp()
    log_ratio = log_p - log_q.detach()
    weights = (alpha * log_ratio).exp().clamp(max=clip)
    if alpha == 1:
        value = (q * weights * log_ratio).sum(1)
    else:
        value = (q * (weights - 1)).sum(1) / (alpha * (alpha - 1))
    return value, -(q * weights * log_q).sum(1) / alpha
