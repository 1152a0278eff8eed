"""`_last_checkpoint`: read and advance the hint."""
