# refused by: inputs kept
def run(x, weight):
    kept = x.clone()
    x.copy_(x.float() - x.float().mean(1, keepdim=True))
    y = x * weight
    x.copy_(kept)
    return y
