"""Timing collectives: what each operation is, the loops that time it, groups."""
