"""What kernels, tensor passes and collectives cost on a calibrated machine."""
