"""Kernel in which the last program of a row, by an atomic counter, reads the sums of all."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, parts, counts, y, columns, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    row, block, blocks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + place, mask=place < columns, other=0.0).to(tl.float32)
    tl.store(parts + row * blocks + block, tl.sum(value, 0))
    tl.debug_barrier()
    if tl.atomic_add(counts + row, 1) == blocks - 1:
        mean = 0.0
        for other in range(0, blocks):
            mean += tl.load(parts + row * blocks + other) / columns
        places = tl.arange(0, WIDTH)
        inside = places < columns
        found = tl.load(x + row * columns + places, mask=inside, other=0.0).to(tl.float32) - mean
        found = found * tl.load(weight + places, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row * columns + places, found.to(y.dtype.element_ty), mask=inside)


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    rows, columns = x.shape
    blocks = triton.cdiv(columns, 16)
    parts = torch.empty(rows, blocks, device=x.device)
    counts = torch.zeros(rows, dtype=torch.int32, device=x.device)
    y = torch.empty_like(x)
    width = triton.next_power_of_2(columns)
    kernel[(rows, blocks)](x, weight, parts, counts, y, columns, BLOCK=16, WIDTH=width)
    return y
