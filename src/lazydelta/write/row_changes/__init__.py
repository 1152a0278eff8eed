"""Rows deleted, updated or replaced by a predicate: files without other rows leave whole, the rest is rewritten."""
