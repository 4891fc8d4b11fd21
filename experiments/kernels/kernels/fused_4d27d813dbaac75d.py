"""pixel_mean: fused."""

import triton
import triton.language as tl


@triton.jit
def fused_kernel(
    x,  # (images, pixels, CHANNELS)
    y,  # (images, CHANNELS), or (images, PARTS, CHANNELS) where there are several
    pixels,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program reduces every PARTS-th block of the pixels of an image, for BLOCK_C channels."""
    image = tl.program_id(0) // PARTS
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    total = tl.full((BLOCK_P, BLOCK_C), 0.0, tl.float32)
    for first in range(tl.program_id(0) % PARTS * BLOCK_P, pixels, PARTS * BLOCK_P):
        pixel = first + tl.arange(0, BLOCK_P)[:, None]
        inside = (pixel < pixels) & (channel < CHANNELS)
        place = (image * pixels + pixel) * CHANNELS + channel
        v = tl.load(x + place, mask=inside, other=0).to(tl.float32)
        total = total + tl.where(inside, v, 0.0)
    v = tl.sum(total, 0)[None, :]
    if PARTS == 1:
        # step 0: pixel_mean
        v = v / pixels
    place = tl.program_id(0) * CHANNELS + channel
    tl.store(y + place, v.to(y.dtype.element_ty), mask=channel < CHANNELS)


@triton.jit
def finish_kernel(
    parts,  # (images, PARTS, CHANNELS)
    y,  # (images, CHANNELS)
    pixels,
    CHANNELS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program puts the parts of an image together, for BLOCK_C channels."""
    image = tl.program_id(0)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    part = image * PARTS + tl.arange(0, PARTS)[:, None]
    total = tl.load(parts + part * CHANNELS + channel, mask=channel < CHANNELS, other=0)
    v = tl.sum(total, 0)[None, :]
    # step 0: pixel_mean
    v = v / pixels
    tl.store(y + image * CHANNELS + channel, v.to(y.dtype.element_ty), mask=channel < CHANNELS)
