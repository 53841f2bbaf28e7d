"""nccl-tests and rccl-tests, text, JSON and CSV."""
