"""Super-resolution and restoration: a picture for each image, perhaps with more pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from hwnas.deploy.io import OutputMeaning, Preprocessing, at_size
from hwnas.errors import ConfigError, DataError
from hwnas.registry import Plugin
from hwnas.search.data.image_data import ImageData
from hwnas.search.data.pictures import upscale_of
from hwnas.search.tasks.task import Metric, check_metrics

__all__ = ["PLUGINS", "SuperResolution", "luma", "structural_similarity", "super_resolution"]

_PSNR, _SSIM = "psnr_db", "ssim"
_UNITS = {_PSNR: "dB", _SSIM: "of at most 1"}
_LEAST_SQUARE = 1 / 12 / 255**2  # mean square of rounding to whole numbers, of 255
_WINDOW, _SIGMA = 11, 1.5
_K1, _K2 = 0.01, 0.03
_LUMA = (65.481, 128.553, 24.966)
_LUMA_OFFSET = 16.0


@dataclass(frozen=True)
class SuperResolution:
    """Super-resolution task: each image has a picture that is a whole number of times as large.

    With pictures of the size of their images, this is restoration, such as denoising. Networks
    learn the pictures' standardised pixels: less the mean of each channel, divided by its standard
    deviation, as in the networks' inputs.

    Metrics are those of the literature: of pixels that are clipped and rounded to whole numbers, on
    the luma of coloured pictures (`luma`), without a border as wide as the upscaling factor.

    Attributes:
        preprocessing: Preprocessing at the size of the data's own images.
        upscale: Number of times that a picture is as large as its image, in each direction.
        metric_names: Names of the metrics, ``"psnr_db"`` and ``"ssim"``; training reports the
            first.

    Raises:
        ConfigError: A metric is unknown, or named twice.
    """

    preprocessing: Preprocessing
    upscale: int
    metric_names: tuple[str, ...] = (_PSNR, _SSIM)

    def __post_init__(self) -> None:
        check_metrics(self.metric_names, _UNITS)

    @property
    def name(self) -> str:
        """Name of the task, ``"super-resolution"``."""
        return "super-resolution"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Peak signal-to-noise ratio, and structural similarity."""
        return tuple(Metric(name, "maximize", _UNITS[name]) for name in self.metric_names)

    @property
    def outputs(self) -> int:
        """Number of output maps: the channels of a picture."""
        return self.preprocessing.channels

    @property
    def meaning(self) -> OutputMeaning:
        """Meaning of the outputs: standardised pixels of a picture."""
        how = self.preprocessing
        return OutputMeaning("picture", scale=how.std, offset=how.mean)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean absolute error of pixels in 0..1 (Lim et al., EDSR, CVPRW 2017)."""
        return (self._pixels(outputs, targets.shape[1:3]) - _scaled(targets)).abs().mean()

    def distillation_loss(self, outputs: Tensor, teacher_outputs: Tensor) -> Tensor:
        """Return the mean absolute error against the teacher's pixels in 0..1."""
        size = teacher_outputs.shape[2:]
        teacher = self._pixels(teacher_outputs.detach(), size)
        return (self._pixels(outputs, size) - teacher).abs().mean()

    def _pixels(self, outputs: Tensor, size: Sequence[int]) -> Tensor:
        """Return the pixels that outputs stand for, (N, C, H, W), mostly in 0..1."""
        scale, offset = (
            outputs.new_tensor(each, dtype=torch.float32).view(1, -1, 1, 1)
            for each in (self.preprocessing.std, self.preprocessing.mean)
        )
        return at_size(outputs.float(), size) * scale + offset

    def statistics(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the metrics of each image, (N,) each.

        The peak signal-to-noise ratio is 10 log10(1 / MSE) dB for pixels in 0..1; an MSE counts as
        at least that of rounding to whole numbers, so that it is at most 58.9 dB.
        """
        made = (self._pixels(outputs, targets.shape[1:3]).clamp(0, 1) * 255).round() / 255
        found, wanted = (self._inside(luma(each)) for each in (made, _scaled(targets)))
        error = (found - wanted).square().mean((1, 2, 3)).clamp(min=_LEAST_SQUARE)
        values = {_PSNR: -10 * error.log10()}
        if _SSIM in self.metric_names:
            values[_SSIM] = structural_similarity(found, wanted)
        return {name: values[name] for name in self.metric_names}

    def _inside(self, pictures: Tensor) -> Tensor:
        """Return pictures (N, 1, H, W) in float64 without their border."""
        border = self.upscale
        return pictures.double()[:, :, border:-border, border:-border]

    def metric_values(self, means: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of the split: the means over its images."""
        return dict(means)


def _scaled(pictures: Tensor) -> Tensor:
    """Return pixels in 0..1, float32 (N, C, H, W), of pictures, uint8 (N, H, W, C)."""
    return pictures.permute(0, 3, 1, 2).float() / 255


def luma(pictures: Tensor) -> Tensor:
    """Return the luma of pictures with red, green and blue: Y of YCbCr (ITU-R BT.601), in 0..1.

    Args:
        pictures: (N, C, H, W), pixels in 0..1.

    Returns:
        (N, 1, H, W); from 16/255 to 235/255 for three channels. The mean of the channels for any
        other number, so that grey pictures remain as they are.
    """
    if pictures.shape[1] != 3:
        return pictures.mean(1, keepdim=True)
    weights = pictures.new_tensor(_LUMA).view(1, 3, 1, 1)
    return ((pictures * weights).sum(1, keepdim=True) + _LUMA_OFFSET) / 255


def structural_similarity(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the structural similarity of each picture with another (SSIM).

    Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity", IEEE
    TIP 2004, section III.B: a Gaussian window of 11 x 11 pixels with a standard deviation of 1.5,
    K1 = .01 and K2 = .03, averaged over all places where the window lies inside. For smaller
    pictures the window is as large as fits.

    Args:
        found: (N, 1, H, W), pixels in 0..1.
        wanted: Likewise.

    Returns:
        (N,), at most 1.
    """
    sides = [min(_WINDOW, side) for side in found.shape[2:]]
    rows, columns = (_gaussian(side, found) for side in sides)
    window = (rows[:, None] * columns[None, :])[None, None]
    both = torch.stack([found, wanted, found**2, wanted**2, found * wanted]).flatten(0, 1)
    x, y, xx, yy, xy = functional.conv2d(both, window).chunk(5)
    c1, c2 = _K1**2, _K2**2
    covariance, variances = xy - x * y, (xx - x**2) + (yy - y**2)
    places = ((2 * x * y + c1) * (2 * covariance + c2)) / ((x**2 + y**2 + c1) * (variances + c2))
    return places.mean((1, 2, 3))


def _gaussian(side: int, like: Tensor) -> Tensor:
    """Return Gaussian weights that sum to 1, (side,)."""
    distance = torch.arange(side, dtype=like.dtype, device=like.device) - (side - 1) / 2
    weights = (-(distance**2) / (2 * _SIGMA**2)).exp()
    return weights / weights.sum()


def super_resolution(data: ImageData, metrics: Sequence[str] = (_PSNR, _SSIM)) -> SuperResolution:
    """Return the super-resolution task of a data set.

    Args:
        data: Data set whose targets are pictures, such as that of ``"upscale2:PATH"``.
        metrics: Names of the metrics; see `SuperResolution`.

    Raises:
        ConfigError: A metric is unknown, or named twice.
        DataError: The targets of the data are not pictures, or pictures are too small to score.
    """
    if data.kind != "pictures":
        raise DataError(
            f"task super-resolution needs pictures, uint8 (N, H, W, C), but the targets are "
            f'{data.kind}; set data.source = "upscale2:PATH", or name another task'
        )
    picture = data.train.image_targets.shape[1:3]
    upscale = upscale_of(data.image_shape[:2], picture)
    assert upscale is not None  # checked by the split
    if min(picture) <= 2 * upscale:
        raise ConfigError(
            f"pictures of {picture[0]} x {picture[1]} pixels have nothing inside a border of "
            f"{upscale}; raise data.size"
        )
    return SuperResolution(data.preprocessing, upscale, tuple(metrics))


PLUGINS = (
    Plugin(
        "task",
        "super-resolution",
        super_resolution,
        "A larger or better picture of each image; metrics PSNR and SSIM on luma",
    ),
)
