"""Modules of a `SimpleNetSpace`, built from chosen options."""

from __future__ import annotations

from torch import Tensor, nn

from hwnas.search_spaces.layers import ConvNormAct
from hwnas.search_spaces.simplenet.config import SimpleNetConfig

__all__ = ["SimpleNet", "classifier", "layer"]


class SimpleNet(nn.Module):
    """Network of a `SimpleNetSpace`: (N, C, H, W) -> (N, outputs)."""

    def __init__(self, groups: list[nn.Sequential], classifier: nn.Module, dropout: float) -> None:
        super().__init__()
        self.groups = nn.ModuleList(groups)
        self.halve = nn.MaxPool2d(2, ceil_mode=True)  # as in Caffe, which the paper used
        self.dropout = nn.Dropout(dropout)
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Return outputs (N, outputs) of images (N, C, H, W)."""
        x = images
        for g, group in enumerate(self.groups):
            assert isinstance(group, nn.Sequential)
            x = self.halve(x) if g else x
            for layer in group:
                x = self.dropout(layer(x))
        outputs: Tensor = self.classifier(x.amax((2, 3)))
        return outputs


def layer(kernel_size: int, inputs: int, outputs: int) -> ConvNormAct:
    """Return a convolution with normalisation and ReLU."""
    return ConvNormAct(inputs, outputs, kernel_size, activation="relu")


def classifier(config: SimpleNetConfig, inputs: int) -> nn.Linear:
    """Return the classifier, which takes the spatial maximum of the last feature map."""
    return nn.Linear(inputs, config.outputs)
