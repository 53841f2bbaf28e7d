"""Verbs of the command line, one file each: its options, and how its result is printed."""
