"""`make bench`: ratios between two things measured in the same run. Nothing here asserts."""
