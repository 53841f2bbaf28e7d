"""`calib train`: what is trained, and how runs are shown."""
