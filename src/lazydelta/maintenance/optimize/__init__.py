"""OPTIMIZE: small files of a partition become few large ones, and deleted rows are left out on the way."""
