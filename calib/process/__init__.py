"""The process: signals, broken streams, a missing directory."""
