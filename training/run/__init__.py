"""The TrainingRun record, and what in it contradicts itself."""
