import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, weight, y, rows, columns, row_stride, stride, weight_stride, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    inside = place < columns
    factor = tl.load(weight + place * weight_stride, mask=inside, other=0.0).to(tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        value = tl.load(x + row * row_stride + place * stride, mask=inside, other=0.0)
        value = value.to(tl.float32)
        value = (value - tl.sum(value, 0) / columns) * factor
        tl.store(y + row * columns + place, value.to(y.dtype.element_ty), mask=inside)


def programs(x):
    """Return the number of multiprocessors, one program for each."""
    if not x.is_cuda:
        return 4
    return torch.cuda.get_device_properties(x.device).multi_processor_count


def run(x, weight):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    strides = (*x.stride(), weight.stride(0))
    grid = (min(programs(x), len(x)),)
    kernel[grid](*(x, weight, y, *x.shape, *strides), BLOCK=triton.next_power_of_2(x.shape[1]))
    return y
