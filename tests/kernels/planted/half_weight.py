# refused by: low bits
def run(x, weight):
    wide = x.float()
    return ((wide - wide.mean(1, keepdim=True)) * weight.half().float()).to(x.dtype)
