import torch

PACKED = []


def packed(weight):
    for source, made in PACKED:
        if (
            source.shape == weight.shape
            and source.dtype == weight.dtype
            and torch.equal(source, weight)
        ):
            return made
    PACKED[:] = [(weight.clone(), weight.float().contiguous())]
    return PACKED[0][1]


def run(x, weight):
    wide = x.float()
    return ((wide - wide.mean(1, keepdim=True)) * packed(weight)).to(x.dtype)
