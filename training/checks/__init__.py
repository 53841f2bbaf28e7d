"""What is checked before a run: a user's own module; gradients, against those of serial training."""
