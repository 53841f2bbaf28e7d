"""Other people's training as TrainingRun records: tables of iteration times, profiler traces."""
