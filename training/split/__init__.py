"""Layers in parts: several ranks share a layer's weights or its images."""
