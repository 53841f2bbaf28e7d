"""The records of a measurement: Cluster, Sample, Manifest, and parts of them on disk."""
