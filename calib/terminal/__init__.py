"""Terminal output: lines, tables, JSON, progress, and how single results look."""
