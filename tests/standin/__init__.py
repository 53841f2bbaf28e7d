"""A stand-in for a machine with two GPUs; sitecustomize.py puts it in place."""
