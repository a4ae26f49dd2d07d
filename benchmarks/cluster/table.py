"""The whole table, in one run, with what else the machine did meanwhile.

Each group of rows is measured once more where one of them is over its bound.
"""
