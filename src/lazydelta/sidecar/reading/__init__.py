"""The sidecar as the base of a scan."""
