"""Plain tables of sizes and times."""
