"""Steps in a history that noise does not explain, and the verdict."""
