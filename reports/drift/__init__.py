"""Steps in the series of a history that noise does not explain, what they are of, and the verdict."""
