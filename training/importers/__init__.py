"""Training of other people as TrainingRun records: tables of iteration times, profiler traces."""
