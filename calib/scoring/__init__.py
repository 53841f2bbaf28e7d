"""From run directories to scores and findings."""
