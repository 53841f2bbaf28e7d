"""What the machine is, where ranks run, and what disturbs them."""
