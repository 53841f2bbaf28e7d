"""A log's lines: prefixes, tokens, faults, and why a program did not come to print."""
