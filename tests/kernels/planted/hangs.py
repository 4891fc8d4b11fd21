# refused by: runs
import time


def run(x, weight):
    time.sleep(3600)
