"""Hand-written U-Net that does not depend on hwnas."""

import torch
from torch import Tensor, nn


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3x3 convolutions, each with batch normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """U-Net of Ronneberger et al., 2015.

    From "U-Net: Convolutional Networks for Biomedical Image Segmentation". The convolutions are
    padded, so the output is as large as the image; height and width must be multiples of 4.

    Args:
        channels: Channels of the images.
        outputs: Number of classes.
        width: Channels of the first level; each further level has twice as many.
    """

    def __init__(self, channels: int, outputs: int, width: int = 16) -> None:
        super().__init__()
        self.down1 = double(channels, width)
        self.down2 = double(width, 2 * width)
        self.bottom = double(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = double(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge1 = double(2 * width, width)
        self.outputs = nn.Conv2d(width, outputs, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (N, outputs, H, W) of images (N, channels, H, W)."""
        fine = self.down1(images)
        middle = self.down2(self.pool(fine))
        coarse = self.bottom(self.pool(middle))
        y = self.merge2(torch.cat([self.up2(coarse), middle], 1))
        y = self.merge1(torch.cat([self.up1(y), fine], 1))
        logits: Tensor = self.outputs(y)
        return logits


def build_unet(image_shape: tuple[int, int, int], outputs: int, width: int = 16) -> UNet:
    """Build the U-Net that the recipe names."""
    return UNet(image_shape[2], outputs, width)
