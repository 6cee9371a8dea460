"""The same faults in the loops of every framework: is the wait measured and the cause named, whoever wrote the loop?"""
