"""Costs of kernels, tensor passes and collectives on a calibrated machine."""
