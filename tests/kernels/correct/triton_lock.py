"""Kernel whose programs add to a sum one after the other, by a lock, as in Triton's tutorial."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, sums, locks, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + place, mask=place < columns, other=0.0).to(tl.float32)
    while tl.atomic_cas(locks + row, 0, 1) == 1:
        pass
    tl.store(sums + row, tl.load(sums + row) + tl.sum(value, 0))
    tl.debug_barrier()
    tl.atomic_xchg(locks + row, 0)


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    rows, columns = x.shape
    sums = torch.zeros(rows, device=x.device)
    locks = torch.zeros(rows, dtype=torch.int32, device=x.device)
    add[(rows, triton.cdiv(columns, 32))](x, sums, locks, columns, BLOCK=32)
    return ((x.float() - sums[:, None] / columns) * weight.float()).to(x.dtype)
