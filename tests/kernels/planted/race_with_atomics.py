# refused by: races
import torch
import triton
import triton.language as tl


@triton.jit
def add(x, sums, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + place, mask=place < columns, other=0.0).to(tl.float32)
    if tl.program_id(1) == 0:
        tl.store(sums + row, tl.sum(value, 0))  # other programs may have added before
    else:
        tl.atomic_add(sums + row, tl.sum(value, 0))


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    rows, columns = x.shape
    sums = torch.zeros(rows, device=x.device)
    add[(rows, triton.cdiv(columns, 8))](x, sums, columns, BLOCK=8)
    return ((x.float() - sums[:, None] / columns) * weight.float()).to(x.dtype)
