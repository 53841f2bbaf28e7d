"""What a process of calib meets: signals, broken streams, a missing directory."""
