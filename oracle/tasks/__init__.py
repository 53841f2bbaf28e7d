"""A predicted iteration as tasks with dependencies: what each rank computes and sends, and when."""
