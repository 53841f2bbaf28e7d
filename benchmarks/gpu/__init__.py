"""What is found out on a GPU in 40 minutes: `python -m benchmarks.gpu`.

Every step has a process and a time limit of its own, so that a hang or a CUDA error loses that step
alone. gpu.json and gpu.md are written after each, and a step that is run again replaces its part.
"""
