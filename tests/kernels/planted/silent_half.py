# refused by: low bits
def run(x, weight):
    narrow = x.half()
    return ((narrow - narrow.mean(1, keepdim=True)) * weight.half()).to(x.dtype)
