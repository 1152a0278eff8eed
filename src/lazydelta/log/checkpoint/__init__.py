"""Read checkpoints, classic and V2."""
