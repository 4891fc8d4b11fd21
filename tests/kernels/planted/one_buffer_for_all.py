# refused by: own outputs
BUFFERS = {}


def run(x, weight):
    wide = x.float()
    y = BUFFERS.setdefault((x.shape, x.dtype), x.clone())
    return y.copy_((wide - wide.mean(1, keepdim=True)) * weight.float())
