"""Pipelines: PipeDream's replicated stages, straight ones, GPipe's and interleaved 1F1B."""
