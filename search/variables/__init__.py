"""Parallax (Kim et al., 2019): each variable by allreduce or by parameter server, and partitions."""
