"""Kernel whose programs add to the sums of rows by atomic operations, in any order."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, sums, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + place, mask=place < columns, other=0.0).to(tl.float32)
    tl.atomic_add(sums + row, tl.sum(value, 0), sem="relaxed")


@triton.jit
def centre(x, weight, sums, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < columns
    value = tl.load(x + row * columns + place, mask=inside, other=0.0).to(tl.float32)
    value = (value - tl.load(sums + row) / columns) * tl.load(
        weight + place, mask=inside, other=0.0
    )
    tl.store(y + row * columns + place, value.to(y.dtype.element_ty), mask=inside)


BLOCKS = {1: 1, 2: 2, 4: 4}  # like a table of tuned configurations


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    rows, columns = x.shape
    block = BLOCKS.get(columns, 16)
    grid = (rows, triton.cdiv(columns, block))
    sums = torch.zeros(rows, device=x.device)
    y = torch.empty_like(x)
    add[grid](x, sums, columns, BLOCK=block)
    centre[grid](x, weight, sums, y, columns, BLOCK=block)
    return y
