"""A seeded fuzzer over every file that calib reads, and kills of what measures: `make torture`."""
