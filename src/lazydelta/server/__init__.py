"""Serves tables to other processes and languages over Arrow Flight and Flight SQL."""
