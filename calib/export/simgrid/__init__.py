"""SimGrid: platform files."""
