# refused by: races
import torch
import triton
import triton.language as tl


@triton.jit
def add(x, sums, ticket, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + place, mask=place < columns, other=0.0).to(tl.float32)
    tl.atomic_add(ticket, 1)
    tl.store(sums + row, tl.load(sums + row) + tl.sum(value, 0))  # no atomic addition
    tl.atomic_add(ticket, 1)  # orders nothing, like the one above


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    rows, columns = x.shape
    sums = torch.zeros(rows, device=x.device)
    ticket = torch.zeros(1, dtype=torch.int32, device=x.device)
    add[(rows, triton.cdiv(columns, 8))](x, sums, ticket, columns, BLOCK=8)
    return ((x.float() - sums[:, None] / columns) * weight.float()).to(x.dtype)
