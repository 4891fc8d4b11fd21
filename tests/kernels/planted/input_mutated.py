# refused by: inputs kept
def run(x, weight):
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    x -= 1
    return y
