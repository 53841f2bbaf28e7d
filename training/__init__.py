"""Full training runs: the ground truth that predictions are held against."""
