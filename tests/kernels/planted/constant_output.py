# refused by: dependence
def run(x, weight):
    return x.new_zeros(x.shape)
