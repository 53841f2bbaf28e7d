"""ASTRA-sim: network.yml and system.json."""
