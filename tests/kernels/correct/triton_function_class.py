import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, columns, BLOCK: tl.constexpr):
    row, place = tl.program_id(0), tl.arange(0, BLOCK)
    inside = place < columns
    value = tl.load(x + row * columns + place, mask=inside, other=0.0).to(tl.float32)
    value = value - tl.sum(value, 0) / columns
    value = value * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + place, value.to(y.dtype.element_ty), mask=inside)


class Centre(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x, weight = x.contiguous(), weight.contiguous()
        y = torch.empty_like(x)
        columns = x.shape[1]
        kernel[(len(x),)](x, weight, y, columns, BLOCK=triton.next_power_of_2(columns))
        ctx.save_for_backward(x, weight)
        return y


def run(x, weight):
    return Centre.apply(x, weight)
