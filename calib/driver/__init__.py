"""The driver: starts ranks under a launcher, listens to them, and outlives them."""
