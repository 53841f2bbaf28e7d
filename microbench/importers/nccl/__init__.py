"""nccl-tests and rccl-tests: text (text_logs.py), JSON (json_runs.py) and CSV (rccl_results.py)."""
