"""The sections of parameters.json, each fitted from its samples."""
