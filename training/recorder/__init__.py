"""Record the iterations of any PyTorch loop."""
