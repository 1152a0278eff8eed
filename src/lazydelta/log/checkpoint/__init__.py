"""Checkpoints, classic and V2."""
