"""Chains of matrix products under SBP strategies (AutoDDL), run on ranks.

placement.py says which rank has which block, engine.py moves and multiplies them, operations.py lists
the collectives, worker.py is what the launcher starts. What a strategy is: search/sbp.
"""
