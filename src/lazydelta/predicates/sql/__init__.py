"""SQL conditions: SQL string to syntax tree to predicate."""
