"""The exchange of gradients between replicas."""
