"""Kernel whose programs take rows from an atomic counter, so any program may compute any row."""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, ticket, columns, BLOCK: tl.constexpr):
    row = tl.atomic_add(ticket, 1)
    place = tl.arange(0, BLOCK)
    inside = place < columns
    value = tl.load(x + row * columns + place, mask=inside, other=0.0).to(tl.float32)
    value = value - tl.sum(value, 0) / columns
    value = value * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + place, value.to(y.dtype.element_ty), mask=inside)


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    y, ticket = x.new_empty(x.shape), torch.zeros(1, dtype=torch.int32, device=x.device)
    columns = x.shape[1]
    kernel[(len(x),)](x, weight, y, ticket, columns, BLOCK=triton.next_power_of_2(columns))
    return y
