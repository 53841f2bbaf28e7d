"""Equal work at every device, node and pair of nodes, timed so that what differs is seen."""
