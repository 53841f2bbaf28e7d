"""What is predicted: choices on the command line; predictions.json."""
