"""What is predicted: the choices of a command line, and predictions.json of a run."""
