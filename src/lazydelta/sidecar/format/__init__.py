"""Sidecar file format: columns, row order, files and manifest."""
