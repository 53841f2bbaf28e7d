"""The machine: what it is, where ranks run, what disturbs them."""
