"""The exchange of a sparse gradient, by parameter server, allgatherv or as a dense one (Parallax)."""
