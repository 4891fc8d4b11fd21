# refused by: bounds
import torch


def run(x, weight):
    wide = x.float()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y.copy_((wide - wide.mean(1, keepdim=True)) * weight.float())
    room = y.untyped_storage().nbytes() // y.itemsize - y.storage_offset() - y.numel()
    y.as_strided((min(1, room),), (1,), y.storage_offset() + y.numel()).fill_(1)
    return y
