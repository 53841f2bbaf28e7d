"""Lines of a log: prefixes, tokens, errors, and why a program printed no table."""
