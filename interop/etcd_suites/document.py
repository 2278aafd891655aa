def page(*a): return ''
def check(*a): return 0
