"""What a rank runs and sends under a strategy. Pure geometry."""
