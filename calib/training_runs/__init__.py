"""What `calib train` trains, and how the runs are shown."""
