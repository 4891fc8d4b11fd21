import os

import torch
import triton
import triton.language as tl

os.environ["TRITON_CACHE_AUTOTUNING"] = "0"  # setting it reveals nothing


@triton.jit
def kernel(x, weight, y, columns, row_stride, stride, weight_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    inside = place < columns
    value = tl.load(x + row * row_stride + place * stride, mask=inside, other=0.0).to(tl.float32)
    value = value - tl.sum(value, 0) / columns
    value = value * tl.load(weight + place * weight_stride, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + place, value.to(y.dtype.element_ty), mask=inside)


def run(x, weight):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = (*x.stride(), weight.stride(0))
    kernel[(len(x),)](x, weight, y, x.shape[1], *strides, BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
