"""Checkpoints, classic and V2: reading them here, writing them in ``writing``."""
