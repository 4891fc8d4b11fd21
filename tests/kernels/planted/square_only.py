# refused by: shapes
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < rows  # rows instead of columns
    value = tl.load(x + row * rows + place, mask=inside, other=0.0).to(tl.float32)
    value = value - tl.sum(value, 0) / rows
    value = value * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * rows + place, value.to(y.dtype.element_ty), mask=inside)


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    y = torch.empty_like(x)
    kernel[(x.shape[0],)](x, weight, y, x.shape[0], BLOCK=triton.next_power_of_2(x.shape[0]))
    return y
