"""Execution traces of others as nodes: Chakra's protobuf, and the JSON of PyTorch's observer."""
