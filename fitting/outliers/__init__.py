"""What of a cluster is not like the others: devices, nodes, rails, switches, pairs."""
