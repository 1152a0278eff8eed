"""Lazy scan: streams the files of a version in memory that does not grow with the table."""
