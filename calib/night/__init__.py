"""The nightly run: its directory, its short check, its trainings, its verdict."""
