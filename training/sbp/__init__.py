"""Chains of matrix products under SBP strategies (AutoDDL), run on ranks.

placement.py says which rank has which block, engine.py moves and multiplies them, serial.py is what
the result must be, worker.py is what the launcher starts. What a strategy's state is, and which
operations it takes, is defined by search/sbp; here they are done.
"""
