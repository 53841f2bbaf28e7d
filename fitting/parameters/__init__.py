"""The Parameters record (parameters.json), its parts and its signature."""
