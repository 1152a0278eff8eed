"""Operators and functions on values: from typed arguments to a typed result with its SQL."""
