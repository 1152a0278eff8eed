"""The demo: streams telemetry into a table with Spark, queries it, and compares with deltalake.

It uses public names only, as a program of a user would.
"""

__all__ = ["pipeline", "queries", "story"]
