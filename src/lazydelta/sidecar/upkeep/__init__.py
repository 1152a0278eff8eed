"""Clearing away: files that no kept manifest needs, and whole sidecars."""
