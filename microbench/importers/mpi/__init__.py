"""OSU micro-benchmarks and the Intel MPI Benchmarks."""
