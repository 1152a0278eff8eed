"""Writing checkpoints; a part of its own because it needs statistics, which are above the log."""
