"""What every room stands on and none owns; it imports nothing else of calib.

Errors, whole-or-nothing files, the interval of a median, and layer shapes, by which microbench, fitting
and oracle mean the same layer.
"""
