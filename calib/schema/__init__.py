"""The JSON Schema of every record that the program reads or writes."""
