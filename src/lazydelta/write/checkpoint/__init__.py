"""Writing of checkpoints."""
