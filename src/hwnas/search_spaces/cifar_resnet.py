"""Residual networks for small images (He et al., CVPR 2016, section 4.2), as plain modules."""

from __future__ import annotations

from torch import Tensor, nn

from hwnas.search_spaces.layers import BasicBlock, ConvNormAct

__all__ = ["CifarResNet", "resnet20", "resnet56"]

_CHANNELS = (16, 32, 64)


class CifarResNet(nn.Module):
    """Residual network of three stages, of 16, 32 and 64 channels: (N, C, H, W) -> (N, outputs).

    Shortcuts between stages are projections (option B of the paper).

    Args:
        in_channels: Channels of the images.
        outputs: Length of the output vector.
        blocks: Number n of blocks in each stage; the network has 6n + 2 layers.
    """

    def __init__(self, in_channels: int, outputs: int, blocks: int) -> None:
        super().__init__()
        self.stem = ConvNormAct(in_channels, _CHANNELS[0], 3, activation="relu")
        stages, channels = [], _CHANNELS[0]
        for s, wide in enumerate(_CHANNELS):
            stage = []
            for b in range(blocks):
                stride = 2 if s and not b else 1
                stage.append(BasicBlock(channels, wide, wide, stride, channels != wide))
                channels = wide
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return outputs of shape (N, outputs) for images of shape (N, C, H, W)."""
        outputs: Tensor = self.classifier(self.stages(self.stem(images)).mean((2, 3)))
        return outputs


def resnet20(image_shape: tuple[int, int, int], outputs: int) -> CifarResNet:
    """Return a network of 20 layers and 0.27 million parameters."""
    return CifarResNet(image_shape[2], outputs, 3)


def resnet56(image_shape: tuple[int, int, int], outputs: int) -> CifarResNet:
    """Return a network of 56 layers and 0.85 million parameters."""
    return CifarResNet(image_shape[2], outputs, 9)
