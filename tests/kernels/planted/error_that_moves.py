# refused by: deterministic
import itertools

CALLS = itertools.count()


def run(x, weight):
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y * (1 + next(CALLS) % 2 * 4 * 2**-10) if x.dtype.itemsize == 2 else y
