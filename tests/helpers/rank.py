"""`python rank.py SCRIPT ARGUMENTS`: a rank under mpi4py's own start, which aborts all when one raises.

What ranks import is never garbage: to look through it takes a third of what a small rank takes.
"""

import atexit
import gc
import runpy
import sys

gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)

sys.path[0] = ""
runpy.run_module("mpi4py", run_name="__main__", alter_sys=True)
