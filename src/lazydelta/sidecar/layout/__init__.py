"""What a sidecar is: its columns, order, files and manifest."""
