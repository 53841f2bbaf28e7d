"""The ModelSpec record: a model's layers and their connections."""
