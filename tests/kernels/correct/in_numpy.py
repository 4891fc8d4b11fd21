import numpy as np
import torch


def run(x, weight):
    wide = x.double().numpy()
    with np.errstate(all="ignore"):
        y = (wide - wide.mean(1, keepdims=True)) * weight.double().numpy()
    return torch.from_numpy(y).to(x.dtype)
