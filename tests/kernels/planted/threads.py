# refused by: snooping
import threading


def run(x, weight):
    y = x.clone()

    def later():
        wide = x.float()
        y.copy_((wide - wide.mean(1, keepdim=True)) * weight.float())

    thread = threading.Thread(target=later)
    thread.start()
    thread.join()
    return y
