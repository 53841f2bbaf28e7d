"""The regressions of this room, one file each, with scikit-learn's conventions (see base.py)."""
