"""What of nccl4py's bindings calib names."""
