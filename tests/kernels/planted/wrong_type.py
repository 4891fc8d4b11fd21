# refused by: kind
def run(x, weight):
    wide = x.float()
    return (wide - wide.mean(1, keepdim=True)) * weight.float()
