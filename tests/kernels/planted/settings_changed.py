# refused by: state
import torch


def run(x, weight):
    torch.set_float32_matmul_precision("medium")
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y
