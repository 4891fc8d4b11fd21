# refused by: extremes
def run(x, weight):
    x = x.clamp(-100, 100) + (x - x)
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y
