"""The sidecar: native statistics sorted by time, beside the checkpoint that they mirror."""
