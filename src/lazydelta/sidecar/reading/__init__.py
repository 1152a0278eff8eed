"""Reading the base of a scan from a sidecar."""
