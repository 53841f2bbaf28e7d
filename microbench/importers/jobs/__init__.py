"""What a running job writes of its collectives: NCCL Inspector (inspector.py), traces (traces.py)."""
