# refused by: runs
import ctypes


def run(x, weight):
    ctypes.string_at(0)
