"""Looking at sidecars: what there is, and whether it equals the log."""
