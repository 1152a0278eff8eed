"""Shared foundation of the package: threads, caches, metrics, spilled rows and Arrow arrays."""
