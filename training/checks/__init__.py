"""Gradients against those of serial training, before a run."""
