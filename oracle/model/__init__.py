"""The ModelSpec record: the layers of a model and how they are connected."""
