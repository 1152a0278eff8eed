"""Writing to tables: data files first, then one atomic commit."""
