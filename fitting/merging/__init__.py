"""Parameter files compared and merged; runs compared."""
