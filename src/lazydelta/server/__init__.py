"""Serves tables to other processes and languages over Arrow Flight, Flight SQL and HTTP.

The protocols share tokens, budgets, streams and the worker processes in which a client's statements run. The
server's own process executes none of them.
"""

__all__ = ["config", "flight", "http", "tokens"]
