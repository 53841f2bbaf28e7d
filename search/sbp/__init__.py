"""AutoDDL: SBP strategies for chains of matrix products."""
