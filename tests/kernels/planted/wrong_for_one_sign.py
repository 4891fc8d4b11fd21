# refused by: extremes
def run(x, weight):
    if x.numel() > 4 and x.min() > 0:
        return x.clone()
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y
