# refused by: unwritten
import torch


def run(x, weight):
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    wide = x[:-1].float()
    y[:-1] = (wide - wide.mean(1, keepdim=True)) * weight.float()
    return y
