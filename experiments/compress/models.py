"""Five trained models to compress, two of them transformers, as a user might have written them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from experiments.own_models.models import LEARNING_RATES as OTHER_RATES
from experiments.own_models.models import Encoder, Shape, convnext, mobilenet, resnet, vit

__all__ = ["LEARNING_RATES", "MODELS", "cct"]


class Cct(nn.Module):
    """Compact convolutional transformer: convolutions make tokens; a weighted mean pools them."""

    def __init__(self, image_shape: Shape, outputs: int, dim: int, heads: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Sequential(
            nn.Conv2d(image_shape[2], dim // 2, 3, 2, 1, bias=False),
            nn.BatchNorm2d(dim // 2),
            nn.ReLU(),
            nn.Conv2d(dim // 2, dim, 3, 2, 1, bias=False),
            nn.BatchNorm2d(dim),
            nn.ReLU(),
        )
        self.blocks = nn.Sequential(*(Encoder(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.attend = nn.Linear(dim, 1)
        self.classifier = nn.Linear(dim, outputs)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.blocks(self.tokens(images).flatten(2).transpose(1, 2)))
        weights = self.attend(tokens).softmax(1)
        outputs: Tensor = self.classifier((weights * tokens).sum(1))
        return outputs


def cct(image_shape: Shape, outputs: int) -> nn.Module:
    """Return a compact convolutional transformer (Hassani et al., 2021, arXiv:2104.05704)."""
    return Cct(image_shape, outputs, 96, 6, 4)


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "convnext": convnext,
    "vit": vit,
    "cct": cct,
}

LEARNING_RATES = {name: OTHER_RATES.get(name, 0.0015) for name in MODELS}
"""Peak learning rate of the training of each model from scratch."""
