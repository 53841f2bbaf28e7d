"""Estimators of collectives: Hockney laws, their pieces, contention."""
