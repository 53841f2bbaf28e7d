"""From a request to cases: points (who runs what), then collectives, layers and tensor passes."""
