"""One file per verb: a `command` for the command line and the function that does the work."""
