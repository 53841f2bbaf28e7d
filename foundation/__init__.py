"""What every room stands on and no room owns.

Errors, whole-or-nothing files, the interval of a median, and the vocabulary of layer shapes in
which microbench, fitting and oracle speak of the same layer. Imports nothing of this project.
"""
