"""What a rank runs and sends under a strategy: pure geometry."""
