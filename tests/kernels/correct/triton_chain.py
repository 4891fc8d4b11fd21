import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, sums, turns, tickets, columns, BLOCK: tl.constexpr):
    ticket = tl.atomic_add(tickets, 1)
    blocks = tl.cdiv(columns, BLOCK)
    row, block = ticket // blocks, ticket % blocks
    place = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + place, mask=place < columns, other=0.0).to(tl.float32)
    while tl.atomic_add(turns + row, 0, sem="acquire") != block:
        pass
    tl.store(sums + row, tl.load(sums + row) + tl.sum(value, 0))
    tl.debug_barrier()
    tl.atomic_xchg(turns + row, block + 1, sem="release")


def run(x, weight):
    x, weight = x.contiguous(), weight.contiguous()
    rows, columns = x.shape
    sums = torch.zeros(rows, device=x.device)
    turns = torch.zeros(rows, dtype=torch.int32, device=x.device)
    tickets = torch.zeros(1, dtype=torch.int32, device=x.device)
    kernel[(rows * triton.cdiv(columns, 8),)](x, sums, turns, tickets, columns, BLOCK=8)
    return ((x.float() - sums[:, None] / columns) * weight.float()).to(x.dtype)
