"""Rows of a table deleted or replaced by a predicate: files that hold no others leave whole, the rest is rewritten."""
