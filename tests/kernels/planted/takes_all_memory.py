# refused by: runs
def run(x, weight):
    return x.new_ones(2**40)
