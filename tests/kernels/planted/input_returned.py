# refused by: own outputs
def run(x, weight):
    wide = x.float()
    return x.copy_((wide - wide.mean(1, keepdim=True)) * weight.float()).view(x.shape)
