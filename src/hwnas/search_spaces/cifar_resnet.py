"""The residual networks for small images of He et al., CVPR 2016, section 4.2: plain modules."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from hwnas.search_spaces.layers import ConvNormAct

__all__ = ["CifarResNet", "resnet20", "resnet56"]

_CHANNELS = (16, 32, 64)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, C, H, W) -> (N, C', H / stride, W / stride)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        first = ConvNormAct(in_channels, out_channels, 3, stride, activation="relu")
        second = ConvNormAct(out_channels, out_channels, 3)
        self.body = nn.Sequential(OrderedDict(first=first, second=second))
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else ConvNormAct(in_channels, out_channels, 1, stride)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions make of x to x."""
        y: Tensor = self.activation(self.body(x) + self.shortcut(x))
        return y


class CifarResNet(nn.Module):
    """Three stages of 16, 32 and 64 channels: (N, C, H, W) -> (N, outputs).

    Shortcuts between stages are projections (option B of the paper).

    Args:
        in_channels: Of the images.
        outputs: Length of the output vector.
        blocks: In each stage; there are six times as many layers, and two.
    """

    def __init__(self, in_channels: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.stem = ConvNormAct(in_channels, _CHANNELS[0], 3, activation="relu")
        stages, channels = [], _CHANNELS[0]
        for s, wide in enumerate(_CHANNELS):
            stage = []
            for b in range(blocks):
                stage.append(BasicBlock(channels, wide, 2 if s and not b else 1))
                channels = wide
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs (N, outputs) of images (N, C, H, W)."""
        outputs: Tensor = self.classifier(self.stages(self.stem(images)).mean((2, 3)))
        return outputs


def resnet20(image_shape: tuple[int, int, int], outputs: int) -> CifarResNet:
    """Twenty layers, 0.27 million parameters."""
    return CifarResNet(image_shape[2], outputs, 3)


def resnet56(image_shape: tuple[int, int, int], outputs: int) -> CifarResNet:
    """Fifty-six layers, 0.85 million parameters."""
    return CifarResNet(image_shape[2], outputs, 9)
