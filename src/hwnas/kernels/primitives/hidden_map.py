"""Kernels for the hidden map of an inverted bottleneck, a few channels of a tile at a time.

A program expands the window of x that its tile of the output depends on, in chunks of pixels.
Triton has no way to read a neighbouring thread's registers, so the program writes the expanded
pixels to a scratch buffer of its own and, after a barrier, reads them back as windows. The buffer
has a few KB, which one multiprocessor writes and soon reads, so that its first-level cache can
serve it. But it is global memory, because Triton does not expose the addresses of shared memory.
These kernels have one pipeline stage, because no load may come before the barrier.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hwnas.kernels.primitives.activations import activate
from hwnas.kernels.primitives.windows import add_window

__all__ = ["bottleneck_kernel", "expand_depthwise_kernel", "gate_kernel"]


@triton.jit
def expand_depthwise_kernel(
    x,  # (N, H, W, K)
    expand_weight,  # (K, C)
    expand_bias,  # (C,)
    weight,  # (k, k, C)
    bias,  # (C,)
    reduce_weight,  # (C, S) or None
    scratch,  # (programs, ROWS, BLOCK_C): a buffer for each program
    hidden,  # (N, H', W', C)
    squeezed,  # (N, programs of an image, S), float32, or None
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    SQUEEZED: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPCAST: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    WINDOW_H: tl.constexpr,  # window of a tile, at most the map
    WINDOW_W: tl.constexpr,
    ROWS: tl.constexpr,  # pixels of a window, rounded up to a multiple of BLOCK_M
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Compute BLOCK_C channels of a tile, and their part of the squeezed vector, in each program.

    That vector is linear in the means of channels, so each program multiplies its own means and no
    kernel has to wait for all of them.
    """
    OUT_WIDTH: tl.constexpr = (WIDTH - 1) // STRIDE + 1
    OUT_HEIGHT: tl.constexpr = (HEIGHT - 1) // STRIDE + 1
    tile, image = tl.program_id(0), tl.program_id(2)
    program = (image * tl.num_programs(0) + tile) * tl.num_programs(1) + tl.program_id(1)
    first_channel = tl.program_id(1) * BLOCK_C
    top = tile // tl.cdiv(OUT_WIDTH, TILE_W) * TILE_H
    left = tile % tl.cdiv(OUT_WIDTH, TILE_W) * TILE_W
    piece = scratch + program.to(tl.int64) * (ROWS * BLOCK_C)
    _expand(
        x + image * (HEIGHT * WIDTH * INPUTS), expand_weight, expand_bias, piece,
        top, left, first_channel, HEIGHT, WIDTH, INPUTS, HIDDEN, KERNEL, STRIDE, ACTIVATION,
        UPCAST, WINDOW_H, WINDOW_W, BLOCK_M, BLOCK_C, BLOCK_K,
    )  # fmt: skip
    tl.debug_barrier()
    channels = first_channel + tl.arange(0, BLOCK_C)
    summed = tl.zeros((BLOCK_C,), tl.float32)
    for start in range(0, TILE_H * TILE_W, BLOCK_M):
        places = start + tl.arange(0, BLOCK_M)[:, None]
        rows, columns = top + places // TILE_W, left + places % TILE_W
        in_tile = (places < TILE_H * TILE_W) & (rows < OUT_HEIGHT) & (columns < OUT_WIDTH)
        total = _depthwise(
            piece, weight, bias, rows, columns, top, left, first_channel,
            HEIGHT, WIDTH, HIDDEN, KERNEL, STRIDE, ACTIVATION, WINDOW_H, WINDOW_W, BLOCK_M, BLOCK_C,
        )  # fmt: skip
        pixels = (image * OUT_HEIGHT + rows) * OUT_WIDTH + columns
        tl.store(
            hidden + pixels * HIDDEN + channels[None, :],
            total.to(hidden.dtype.element_ty),
            mask=in_tile & (channels[None, :] < HIDDEN),
        )
        if squeezed is not None:
            summed += tl.sum(tl.where(in_tile, total, 0.0), 0)
    if squeezed is not None:
        means = summed * (1.0 / (OUT_HEIGHT * OUT_WIDTH))
        for start in range(0, SQUEEZED, BLOCK_S):
            outer = start + tl.arange(0, BLOCK_S)
            factor = tl.load(
                reduce_weight + channels[:, None] * SQUEEZED + outer[None, :],
                mask=(channels[:, None] < HIDDEN) & (outer[None, :] < SQUEEZED),
                other=0.0,
            )
            part = tl.sum(means[:, None] * factor.to(tl.float32), 0)
            tl.store(squeezed + program * SQUEEZED + outer, part, mask=outer < SQUEEZED)


@triton.jit
def gate_kernel(
    squeezed,  # (N, parts, S), float32
    reduce_bias,  # (S,)
    excite_weight,  # (S, C)
    excite_bias,  # (C,)
    gate,  # (N, C), float32
    parts,
    SQUEEZED: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add the parts of an image's squeezed vector and excite BLOCK_C channels in each program."""
    image = tl.program_id(1)
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channels < HIDDEN
    total = tl.load(excite_bias + channels, mask=known, other=0.0).to(tl.float32)
    for start in range(0, SQUEEZED, BLOCK_S):
        inner = start + tl.arange(0, BLOCK_S)
        factor = tl.load(
            excite_weight + inner[:, None] * HIDDEN + channels[None, :],
            mask=(inner[:, None] < SQUEEZED) & known[None, :],
            other=0.0,
        )
        lines = tl.zeros((BLOCK_T, BLOCK_S), tl.float32)
        for first in range(0, parts, BLOCK_T):
            line = first + tl.arange(0, BLOCK_T)[:, None]
            lines += tl.load(
                squeezed + (image * parts + line) * SQUEEZED + inner[None, :],
                mask=(line < parts) & (inner[None, :] < SQUEEZED),
                other=0.0,
            )
        added = tl.load(reduce_bias + inner, mask=inner < SQUEEZED, other=0.0).to(tl.float32)
        vector = activate(tl.sum(lines, 0) + added, "relu")
        total += tl.sum(vector[:, None] * factor.to(tl.float32), 0)
    tl.store(gate + image * HIDDEN + channels, activate(total, "hard_sigmoid"), mask=known)


@triton.jit
def bottleneck_kernel(
    x,  # (N, H, W, K)
    expand_weight,  # (K, C)
    expand_bias,  # (C,)
    weight,  # (k, k, C)
    bias,  # (C,)
    project_weight,  # (C, L)
    project_bias,  # (L,)
    residual,  # (N, H', W', L) or None
    scratch,  # (programs, 2, ROWS, BLOCK_C): two buffers for each program
    y,  # (N, H', W', L)
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    OUTPUTS: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPCAST: tl.constexpr,
    TILE_H: tl.constexpr,
    TILE_W: tl.constexpr,
    WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr,  # at least the pixels of the tile
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_N: tl.constexpr,  # at least OUTPUTS
):
    """Compute all channels of a tile of y in each program, BLOCK_C hidden channels at a time.

    A program alternates between its two scratch buffers, so that one barrier a step is enough: when
    it is passed, all threads have read what they need from the other buffer.
    """
    OUT_WIDTH: tl.constexpr = (WIDTH - 1) // STRIDE + 1
    OUT_HEIGHT: tl.constexpr = (HEIGHT - 1) // STRIDE + 1
    tile, image = tl.program_id(0), tl.program_id(1)
    program = image * tl.num_programs(0) + tile
    top = tile // tl.cdiv(OUT_WIDTH, TILE_W) * TILE_H
    left = tile % tl.cdiv(OUT_WIDTH, TILE_W) * TILE_W
    places = tl.arange(0, BLOCK_P)[:, None]
    rows, columns = top + places // TILE_W, left + places % TILE_W
    in_tile = (places < TILE_H * TILE_W) & (rows < OUT_HEIGHT) & (columns < OUT_WIDTH)
    outer = tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for start in range(0, HIDDEN, BLOCK_C):
        piece = scratch + (program.to(tl.int64) * 2 + start // BLOCK_C % 2) * (ROWS * BLOCK_C)
        _expand(
            x + image * (HEIGHT * WIDTH * INPUTS), expand_weight, expand_bias, piece,
            top, left, start, HEIGHT, WIDTH, INPUTS, HIDDEN, KERNEL, STRIDE, ACTIVATION,
            UPCAST, WINDOW_H, WINDOW_W, BLOCK_M, BLOCK_C, BLOCK_K,
        )  # fmt: skip
        tl.debug_barrier()
        seen = _depthwise(
            piece, weight, bias, rows, columns, top, left, start,
            HEIGHT, WIDTH, HIDDEN, KERNEL, STRIDE, ACTIVATION, WINDOW_H, WINDOW_W, BLOCK_P, BLOCK_C,
        )  # fmt: skip
        inner = start + tl.arange(0, BLOCK_C)[:, None]
        a = seen.to(x.dtype.element_ty)
        b = tl.load(
            project_weight + inner * OUTPUTS + outer,
            mask=(inner < HIDDEN) & (outer < OUTPUTS),
            other=0.0,
        )
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
    total += tl.load(project_bias + outer, mask=outer < OUTPUTS, other=0.0).to(tl.float32)
    place = ((image * OUT_HEIGHT + rows) * OUT_WIDTH + columns) * OUTPUTS + outer
    known = in_tile & (outer < OUTPUTS)
    if residual is not None:
        total += tl.load(residual + place, mask=known, other=0.0).to(tl.float32)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=known)


@triton.jit
def _expand(
    x,
    expand_weight,
    expand_bias,
    piece,
    top,
    left,
    first_channel,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    UPCAST: tl.constexpr,
    WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write BLOCK_C channels of a tile's window to a scratch buffer, (rows, BLOCK_C)."""
    first_row = _window_start(top, HEIGHT, WINDOW_H, STRIDE, KERNEL)
    first_column = _window_start(left, WIDTH, WINDOW_W, STRIDE, KERNEL)
    lanes = tl.arange(0, BLOCK_C)[None, :]
    channels = first_channel + lanes
    known = channels < HIDDEN
    added = tl.load(expand_bias + channels, mask=known, other=0.0).to(tl.float32)
    for start in range(0, WINDOW_H * WINDOW_W, BLOCK_M):
        places = start + tl.arange(0, BLOCK_M)[:, None]
        pixels = (first_row + places // WINDOW_W) * WIDTH + first_column + places % WINDOW_W
        in_window = places < WINDOW_H * WINDOW_W
        total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
        for begin in range(0, INPUTS, BLOCK_K):
            inner = begin + tl.arange(0, BLOCK_K)
            a = tl.load(
                x + pixels * INPUTS + inner[None, :],
                mask=in_window & (inner[None, :] < INPUTS),
                other=0.0,
            )
            b = tl.load(
                expand_weight + inner[:, None] * HIDDEN + channels,
                mask=(inner[:, None] < INPUTS) & known,
                other=0.0,
            )
            if UPCAST:
                a, b = a.to(tl.float32), b.to(tl.float32)
            total = tl.dot(a, b, total, input_precision="ieee")
        expanded = activate(total + added, ACTIVATION)
        tl.store(piece + places * BLOCK_C + lanes, expanded.to(piece.dtype.element_ty))


@triton.jit
def _depthwise(
    piece,
    weight,
    bias,
    rows,  # (P, 1) row of each output pixel
    columns,
    top,
    left,
    first_channel,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    HIDDEN: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Compute the depthwise convolution, in float32, of what `_expand` wrote.

    Whatever it reads outside of the buffer is outside of the map, too.
    """
    lanes = tl.arange(0, BLOCK_C)[None, :]
    channels = first_channel + lanes
    known = channels < HIDDEN
    total = add_window(
        tl.zeros((BLOCK_P, BLOCK_C), tl.float32),
        piece + lanes,
        weight + channels,
        rows * STRIDE - KERNEL // 2 - _window_start(top, HEIGHT, WINDOW_H, STRIDE, KERNEL),
        columns * STRIDE - KERNEL // 2 - _window_start(left, WIDTH, WINDOW_W, STRIDE, KERNEL),
        known,
        WINDOW_H,
        WINDOW_W,
        BLOCK_C,
        HIDDEN,
        KERNEL,
    )
    total += tl.load(bias + channels, mask=known, other=0.0).to(tl.float32)
    return activate(total, ACTIVATION)


@triton.jit
def _window_start(
    first, SIZE: tl.constexpr, WINDOW: tl.constexpr, STRIDE: tl.constexpr, KERNEL: tl.constexpr
):
    """Return the start of a tile's window, moved so that the window lies inside the map."""
    return tl.minimum(tl.maximum(first * STRIDE - KERNEL // 2, 0), SIZE - WINDOW)
